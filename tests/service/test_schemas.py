"""Requests generated from the OpenAPI description, valid and invalid, are never internal errors."""

import pytest
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, openapi
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

OPERATIONS = [
    "POST /v1/search",
    "POST /v1/annotate",
    "POST /v1/similar",
    "POST /v1/score",
    "POST /v1/items",
    "POST /v1/session",
    "POST /v1/learn",
    "GET /v1/audit",
    "GET /v1/items",
    "PUT /v1/items/{item_id}",
    "PATCH /v1/items/{item_id}",
    "GET /v1/items/{item_id}",
    "GET /v1/items/{item_id}/image",
    "GET /v1/items/{item_id}/thumbnail",
    "GET /v1/items/{item_id}/file",
    "DELETE /v1/items/{item_id}",
    "GET /v1/model",
    "GET /healthz",
    "GET /metrics",
]
pytestmark = pytest.mark.hypothesis  # with more examples in the whole suite

EXAMPLES = settings().max_examples // 2
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def load_operations(url):
    schema = openapi.from_url(f"{url}/v1/openapi.json")
    return {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}


@pytest.fixture(scope="module")
def operations(live_writable):
    return load_operations(live_writable)


@pytest.fixture(scope="module")
def operations_of_features(live_of_features):
    return load_operations(live_of_features)


@pytest.fixture(scope="module")
def operations_of_molecules(live_of_molecules):
    return load_operations(live_of_molecules)


def test_every_operation_is_tested(operations):
    assert sorted(operations) == sorted(OPERATIONS)


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        *((label, GenerationMode.POSITIVE) for label in OPERATIONS),
        # Requests without a body cannot be invalid: any string may be an id.
        *((label, GenerationMode.NEGATIVE) for label in OPERATIONS if label[:2] in ("PO", "PU", "PA")),
    ],
)
def test_no_request_is_an_internal_error(operations, label, mode):
    fuzz(operations[label], mode)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("label", OPERATIONS[:5])
def test_no_request_is_an_internal_error_for_a_model_of_features(operations_of_features, label, mode):
    fuzz(operations_of_features[label], mode)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(
    "label", ["POST /v1/annotate", "POST /v1/score", "POST /v1/items", "PATCH /v1/items/{item_id}"]
)
def test_no_request_is_an_internal_error_for_a_first_view_of_texts(operations_of_molecules, label, mode):
    fuzz(operations_of_molecules[label], mode)


def fuzz(operation, mode):
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES if operation.body or operation.path_parameters else 2,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    def run(case):
        case.call_and_validate(checks=CHECKS)

    run()

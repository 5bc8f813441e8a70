"""The page with the description of the API."""

import html
import json
import re
import shlex
from html.parser import HTMLParser
from itertools import pairwise

from servers import LOCAL, TOKEN, problem


class Page(HTMLParser):
    """Collects what the tests ask of a page, and checks that every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags = [], [], [], set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if "href" in attributes else []
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_route_and_every_object_is_described(make_client):
    client = make_client(k=33)
    answer, description = client.get("/docs"), client.get("/v1/openapi.json").json()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page, text = Page(answer.text), answer.text
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            assert f"<h3>{method.upper()} {path}</h3>" in text
            for parameter in route.get("parameters", ()):
                assert f"<th>{parameter['name']}</th>" in text
    assert {link[1:] for link in page.links if link[0] == "#"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    assert "style=" not in text
    assert re.search(r'<th>k</th><td class="left">integer \(at least 1, at most 33\)</td>', text)
    assert "at most 2,000 characters" in text
    assert "<code>id</code> or" not in text
    assert {link for link in page.links if link[0] != "#"} == {
        "icon.svg",
        "style.css",
        "./",
        "v1/openapi.json",
    }
    for link in ("icon.svg", "style.css", "v1/openapi.json"):
        assert client.get(f"/{link}").status_code == 200


def test_the_examples_are_requests_that_the_server_understands(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    commands = re.findall(r"<pre>(.*?)</pre>", client.get("/docs").text, re.DOTALL)
    sent = 0
    for command in html.unescape("\n".join(commands)).splitlines():
        words = shlex.split(command)
        method = (
            words[words.index("-X") + 1] if "-X" in words else "POST" if {"-d", "-F"} & set(words) else "GET"
        )
        (address,) = (word for word in words if word.startswith(LOCAL))
        fields = dict(word.split("=", 1) for flag, word in pairwise(words) if flag == "-F")
        if "-d" in words:
            body = {"json": json.loads(words[words.index("-d") + 1])}
        else:
            body = {"files": {"image": b"no image"}, "data": fields} if fields.pop("image", None) else {}
        answer = client.request(method, address, **body)
        assert answer.status_code not in (400, 405, 415, 500), command
        assert answer.status_code < 400 or problem(answer)[1] != "bad-request", (command, answer.text)
        sent += 1
    assert sent >= 20


def test_the_page_needs_the_token_as_the_description_does(make_client):
    client = make_client(token=TOKEN)
    assert client.get("/docs").status_code == client.get("/v1/openapi.json").status_code == 401
    assert client.get("/docs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200

"""Renders a large HTML table from a page template."""

import hashlib

from chameleon import PageTemplate

TEMPLATE = """
<table xmlns="http://www.w3.org/1999/xhtml" xmlns:tal="http://xml.zope.org/namespaces/tal">
  <caption tal:content="title">title</caption>
  <tr tal:repeat="row rows">
    <td tal:repeat="cell row" tal:attributes="class 'even' if cell % 2 == 0 else 'odd'">${cell}</td>
  </tr>
</table>
"""


def handler(event, context):
    rows = int(event.get("rows", 200))
    columns = int(event.get("columns", 20))
    table = [[row * columns + column for column in range(columns)] for row in range(rows)]
    page = PageTemplate(TEMPLATE).render(title=f"{rows} × {columns}", rows=table)
    return {"characters": len(page), "digest": hashlib.sha256(page.encode()).hexdigest()}

"""The two files of the site that are not text: a PNG map and a PDF leaflet, drawn by code.

PNG: a signature and the chunks IHDR, IDAT and IEND (PNG specification, third edition, 5). PDF: six objects,
a table of their offsets, and a trailer (ISO 32000-1, 7.5).
"""

from __future__ import annotations

import struct
import zlib

MAP_WIDTH, MAP_HEIGHT = 240, 160

REED = (188, 178, 110)
WATER = (94, 142, 178)
BOARDWALK = (120, 72, 40)
PASTURE = (128, 168, 96)


def reserve_map() -> bytes:
    """The map of the reserve: the mere, the reeds, the pasture and the Long Boardwalk."""
    rows = bytearray()
    for y in range(MAP_HEIGHT):
        rows.append(0)  # filter type of the row: none
        for x in range(MAP_WIDTH):
            red, green, blue = _ground(x, y)
            grain = (x * 7 + y * 13 + x * y) % 9
            rows += bytes((red + grain, green + grain, blue + grain))
    header = struct.pack(">IIBBBBB", MAP_WIDTH, MAP_HEIGHT, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b""))
    )


def _ground(x: int, y: int) -> tuple[int, int, int]:
    if ((x - 150) / 60) ** 2 + ((y - 60) / 34) ** 2 < 1:
        return WATER
    if abs(y - 120 + x // 4) < 2:
        return BOARDWALK
    return PASTURE if x < 50 else REED


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def leaflet(lines: list[str]) -> bytes:
    """A PDF of one page with these lines of text in Helvetica."""
    escaped = (line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)") for line in lines)
    shown = "BT /F1 11 Tf 15 TL 56 780 Td\n" + "".join(f"({line}) Tj T*\n" for line in escaped) + "ET"
    stream = shown.encode("cp1252")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources 6 0 R >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Font << /F1 5 0 R >> >>",
    ]
    document = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(document))
        document += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = len(document)
    document += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for offset in offsets:
        document += b"%010d 00000 n \n" % offset
    document += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(document)

"""LLVM text that moves a block of a batch between arrays with the batch first and rows, by transposes in registers."""

from __future__ import annotations

from jaxdyn.native._emit import Backend, Body


def transpose_text(backend: Backend, columns: int, declared: set[str], *, gather: bool) -> str:
    """Return the function `@gather<columns>` or `@scatter<columns>`.

    It moves as many elements of the batch as a vector has lanes, of which the first `valid` exist. A tile of them has
    as many columns as fit a vector, or for the last ones the next power of two.
    """
    if backend.lanes == 1:
        return _copied_text(backend, columns, gather=gather)
    body = backend.body(declared)
    lanes, scalar = backend.lanes, backend.scalar
    whole, rest = divmod(columns, lanes)
    body.line("%last = sub i64 %valid, 1")
    rows = []
    for r in range(lanes):
        row: str = str(r)
        if gather:
            # Lanes beyond the end of the batch repeat its last element.
            beyond = body.value(f"icmp ugt i64 {r}, %last")
            row = body.value(f"select i1 {beyond}, i64 %last, i64 {r}")
        offset = body.value(f"mul i64 {row}, %stride")
        rows.append(body.value(f"getelementptr {scalar}, ptr %array, i64 {offset}"))
    body.line("br label %tiles")
    if whole:
        body.lines.append("tiles:")
        body.line("%tile = phi i64 [ 0, %entry ], [ %next, %tiles ]")
        body.line(f"%column = mul i64 %tile, {lanes}")
        _tile(body, rows, lanes, lanes, gather)
        body.line("%next = add i64 %tile, 1")
        body.line(f"%again = icmp ult i64 %next, {whole}")
        body.line("br i1 %again, label %tiles, label %end")
        body.lines.append("end:")
    else:
        body.lines.append("tiles:")
    if rest:
        width = 1
        while width < rest:
            width *= 2
        body.lines.append(f"  %rest = add i64 {whole * lanes}, 0")
        _tile(body, rows, width, rest, gather, column="%rest")
    if gather:
        header = f"define internal void @gather{columns}(ptr %array, i64 %stride, i64 %valid, ptr noalias %rows)"
    else:
        header = f"define internal void @scatter{columns}(ptr noalias %rows, ptr %array, i64 %stride, i64 %valid)"
    return "\n".join([f"{header} noinline #0 {{", "entry:", *body.lines, "  ret void", "}"])


def _copied_text(backend: Backend, columns: int, *, gather: bool) -> str:
    """Return the function that copies the columns of one element of the batch."""
    ends = ("%array", "%rows") if gather else ("%rows", "%array")
    # A loop is shorter than so many instructions, and memory that it goes over cannot be kept in registers.
    unrolled = range(columns) if columns <= UNROLLED else ["%c"]
    lines = []
    for c in unrolled:
        source, target, x = (f"%{name}{c}".replace("%c", "c") for name in ("source", "target", "x"))
        lines += [
            f"  {source} = getelementptr {backend.float}, ptr {ends[0]}, i64 {c}",
            f"  {target} = getelementptr {backend.float}, ptr {ends[1]}, i64 {c}",
            f"  {x} = load {backend.float}, ptr {source}, align {backend.bytes}",
            f"  store {backend.float} {x}, ptr {target}, align {backend.bytes}",
        ]
    if columns > UNROLLED:
        begin = ["  br label %copy", "copy:", "  %c = phi i64 [ 0, %entry ], [ %next, %copy ]"]
        end = ["  %next = add i64 %c, 1", f"  %again = icmp ult i64 %next, {columns}"]
        lines = [*begin, *lines, *end, "  br i1 %again, label %copy, label %done", "done:"]
    if gather:
        header = f"define internal void @gather{columns}(ptr %array, i64 %stride, i64 %valid, ptr %rows)"
    else:
        header = f"define internal void @scatter{columns}(ptr %rows, ptr %array, i64 %stride, i64 %valid)"
    return "\n".join([f"{header} {backend.inlining} #0 {{", "entry:", *lines, "  ret void", "}"])


UNROLLED = 512
"""The most columns that are copied one by one."""


def _tile(body: Body, rows: list[str], width: int, columns: int, gather: bool, column: str = "%column") -> None:
    """Move `columns` columns, in vectors that hold `width` columns of `lanes / width` elements of the batch each."""
    backend = body.backend
    lanes, scalar = backend.lanes, backend.scalar
    part = f"<{width} x {scalar}>"
    size, align = backend.bits // 8, f"align {backend.bytes}"
    mask = f"<{', '.join('i1 true' if c < columns else 'i1 false' for c in range(width))}>"

    def row(c: int) -> str:
        at = body.value(f"add i64 {column}, {c}")
        return body.value(f"getelementptr {backend.float}, ptr %rows, i64 {at}")

    def place(r: int) -> str:
        return body.value(f"getelementptr {scalar}, ptr {rows[r]}, i64 {column}")

    suffix = f"v{width}f{backend.bits}"
    if gather:
        vectors = []
        for k in range(width):
            pieces = []
            for g in range(lanes // width):
                if columns == width:
                    pieces.append(body.value(f"load {part}, ptr {place(k + width * g)}, align {size}"))
                    continue
                body.declared.add(f"declare {part} @llvm.masked.load.{suffix}.p0(ptr, i32, <{width} x i1>, {part})")
                pieces.append(
                    body.value(
                        f"call {part} @llvm.masked.load.{suffix}.p0(ptr {place(k + width * g)}, i32 {size}, "
                        f"<{width} x i1> {mask}, {part} zeroinitializer)"
                    )
                )
            vectors.append(_joined(body, pieces, width))
        for c, vector in enumerate(_transposed(body, vectors, width)[:columns]):
            body.line(f"store {backend.float} {vector}, ptr {row(c)}, {align}")
        return
    vectors = [body.value(f"load {backend.float}, ptr {row(c)}, {align}") for c in range(columns)]
    vectors = _transposed(body, vectors + ["zeroinitializer"] * (width - columns), width)
    body.declared.add(f"declare void @llvm.masked.store.{suffix}.p0({part}, ptr, i32, <{width} x i1>)")
    for k, vector in enumerate(vectors):
        for g in range(lanes // width):
            r = k + width * g
            lane = ", ".join(f"i32 {g * width + c}" for c in range(width))
            piece = vector
            if width < lanes:
                piece = body.value(
                    f"shufflevector {backend.float} {vector}, {backend.float} poison, <{width} x i32> <{lane}>"
                )
            exists = body.value(f"icmp ult i64 {r}, %valid")
            chosen = body.value(f"select i1 {exists}, <{width} x i1> {mask}, <{width} x i1> zeroinitializer")
            body.line(
                f"call void @llvm.masked.store.{suffix}.p0({part} {piece}, ptr {place(r)}, i32 {size}, "
                f"<{width} x i1> {chosen})"
            )


def _joined(body: Body, pieces: list[str], width: int) -> str:
    """Return the vectors one after the other in one."""
    scalar = body.backend.scalar
    while len(pieces) > 1:
        part, both = f"<{width} x {scalar}>", ", ".join(f"i32 {i}" for i in range(2 * width))
        pieces = [
            body.value(f"shufflevector {part} {a}, {part} {b}, <{2 * width} x i32> <{both}>")
            for a, b in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        width *= 2
    return pieces[0]


def _transposed(body: Body, vectors: list[str], width: int) -> list[str]:
    """Transpose squares of `width` numbers that lie side by side in `width` vectors."""
    backend = body.backend
    out = list(vectors)
    step = 1
    while step < width:
        for k in range(width):
            if k & step:
                continue
            a, b = out[k], out[k | step]
            low, high = [], []
            for lane in range(backend.lanes):
                inside = bool(lane % width & step)
                low.append(lane - step + backend.lanes if inside else lane)
                high.append(lane + backend.lanes if inside else lane + step)
            for place, lanes in ((k, low), (k | step, high)):
                order = ", ".join(f"i32 {i}" for i in lanes)
                out[place] = body.value(
                    f"shufflevector {backend.float} {a}, {backend.float} {b}, <{backend.lanes} x i32> <{order}>"
                )
        step *= 2
    return out

/* SPDX-License-Identifier: Apache-2.0 */
/* What comes from an agent of trek-run, or from trek-run to one: lines, then frames and the texts in them. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tools/run_start.h"
#include "tools/run_wire.h"

static void take(const frame *f)
{
    size_t bytes = 0;
    fuzz_expect(f->rank >= 0 && f->rank < MOST && f->type >= WIRE_JOB && f->type <= WIRE_STOPPED, "a frame of a rank");
    for (size_t k = 0; k < f->bytes; k++)
        bytes += f->data[k] != 0;
    fuzz_expect(bytes <= f->bytes, "its bytes are there");
    wire_number(f, 0);
    wire_number(f, 1);
    for (const char *t = NULL; (t = wire_texts_next(f, t));)
        fuzz_expect(t >= f->data && t + strlen(t) < f->data + f->bytes, "a text inside its frame");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wire w;
    frame f;
    bool bad = false, more = true;
    int in = open(fuzz_file(data, size), O_RDONLY | O_CLOEXEC), out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    wire_begin(&w, in, out);
    while (more && !bad) {
        more = wire_fill(&w);
        if (wire_line(&w, &f))
            fuzz_expect(!memchr(f.data, '\n', f.bytes), "a line");
        while (wire_next(&w, &f, &bad))
            take(&f);
    }
    wire_end(&w);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A watched run's file, whole and in parts: the first byte says how long these are. Both make the same state. */
#include <string.h>

#include "monitor/viewer/run_reader.h"
#include "tests/fuzz/fuzz.h"

static bool same_word(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

static void compare(const trek_run_state *a, const trek_run_state *b)
{
    fuzz_expect(a->lines == b->lines && a->bad_lines == b->bad_lines, "as many lines");
    fuzz_expect(a->n_series == b->n_series && a->n_ranks == b->n_ranks && a->n_notes == b->n_notes, "as many of all");
    fuzz_expect(a->n_histograms == b->n_histograms && a->n_images == b->n_images && !a->graph == !b->graph, "as many records");
    fuzz_expect(same_word(a->run, b->run) && same_word(a->error, b->error), "the same words");
    for (int k = 0; k < a->n_series; k++)
        fuzz_expect(a->series[k].seen == b->series[k].seen && a->series[k].count == b->series[k].count &&
                        a->series[k].count <= 16,
                    "the same bounded curves");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    const trek_run_reader_opts opts = { .most_points = 16, .most_notes = 4 };
    trek_run_reader *whole = trek_run_reader_new("input", &opts), *parts = trek_run_reader_new("input", &opts);
    fuzz_expect(whole && parts, "readers");
    const char *bytes = (const char *)data + 1;
    size_t left = size - 1, part = (size_t)data[0] + 1;
    fuzz_settle(trek_run_reader_feed(whole, 3, bytes, left) == TREK_OK);
    for (; left; left -= part, bytes += part) {
        part = part < left ? part : left;
        fuzz_settle(trek_run_reader_feed(parts, 3, bytes, part) == TREK_OK);
    }
    compare(trek_run_reader_state(whole), trek_run_reader_state(parts));
    trek_run_reader_free(&whole);
    trek_run_reader_free(&parts);
    return 0;
}

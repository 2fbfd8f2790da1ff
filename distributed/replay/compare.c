/* SPDX-License-Identifier: Apache-2.0 */
/* The first difference between the lines of two steps, in the order in which a step computes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/replay/replay_internal.h"

enum { WORD = 80 };

/* Compares a word of two lines; if it differs, says so. */
static bool differs(const char *recorded, const char *made, const char *name, const char *what, trek_text *text)
{
    char a[WORD] = "nothing", b[WORD] = "nothing";
    trek_replay_word(recorded, name, a, sizeof a);
    trek_replay_word(made, name, b, sizeof b);
    if (strcmp(a, b) == 0)
        return false;
    trek_text_format(text, "%s: recorded %s, now %s", what, a, b);
    return true;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : NULL;
}

static bool is_grain(const char *line) { return line && strncmp(line, "grain ", 6) == 0; }

/* Samples and losses come before gradients: what went into a grain before what came of it. */
static bool grain_differs(const char *a, const char *b, trek_text *what)
{
    return differs(a, b, "rows", "the number of its samples differs", what) ||
        differs(a, b, "samples", "it has other samples (the dataset or its order is another)", what) ||
        differs(a, b, "weight", "the weight of its loss differs", what) || differs(a, b, "loss", "its loss differs", what) ||
        differs(a, b, "gradients", "its loss is the same, but its gradients differ", what);
}

bool trek_replay_differ(const char *recorded, const char *made, int64_t only, trek_text *what, int64_t *pass,
                        int64_t *grain)
{
    const char *a = recorded, *b = made;
    *grain = *pass = -1;
    for (; is_grain(a) && is_grain(b); a = next_line(a), b = next_line(b)) {
        char number[WORD] = "";
        trek_replay_word(b, "grain", number, sizeof number);
        if (only >= 0 && strtoll(number, NULL, 10) != only)
            continue;
        if (!differs(a, b, "grain", "another grain", what) && !grain_differs(a, b, what))
            continue;
        *grain = strtoll(number, NULL, 10);
        trek_replay_word(b, "pass", number, sizeof number);
        *pass = strtoll(number, NULL, 10);
        return true;
    }
    if (only >= 0)
        return false;
    if (!a || !b || is_grain(a) || is_grain(b)) {
        trek_text_add(what, "the number of its grains differs");
        return true;
    }
    return differs(a, b, "samples", "its samples differ (the dataset or its order is another)", what) ||
        differs(a, b, "loss", "its loss differs", what) ||
        differs(a, b, "gradients", "the sums of its gradients differ, although those of all grains are the same", what) ||
        differs(a, b, "parameters", "its gradients are the same, but the parameters after it differ", what);
}

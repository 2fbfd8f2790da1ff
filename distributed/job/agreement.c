/* SPDX-License-Identifier: Apache-2.0 */
/* Compares texts of all processes by their hashes, and finds the first line that differs by bisection. */
#include "distributed/job/agreement.h"

#include <stdio.h>
#include <string.h>

#include "graph/graph_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/sha256.h"

enum { LINE = 256, LISTED = 3 };

typedef struct card {
    int32_t status, silent;
    int64_t lines;
    unsigned char hash[32];
    char message[160];       /* of a process that has failed */
} card;

typedef struct line {
    char text[LINE];         /* "name<TAB>value"; "": the text has ended */
} line;

typedef struct agreement {
    trek_comm *comm;
    int processes, process;
    const trek_text *text;
    card *cards;             /* [processes] */
    line *lines;             /* [processes] the first line that differs; before that, memory for hashes */
    int *class;              /* [processes] the first process with the same line; -1: it has no say */
} agreement;

/* --- lines ----------------------------------------------------------------------------------------------------------- */

static int64_t count_lines(const trek_text *text)
{
    int64_t n = 0;
    for (size_t k = 0; text && k < text->length; k++)
        n += text->data[k] == '\n';
    return n;
}

/* Returns where line n begins, or the end if there are fewer lines. */
static const char *line_at(const trek_text *text, int64_t n)
{
    const char *at = text->data ? text->data : "";
    for (; n > 0 && *at; n--) {
        const char *end = strchr(at, '\n');
        at = end ? end + 1 : at + strlen(at);
    }
    return at;
}

static bool same(const agreement *a, const unsigned char *hashes)
{
    int first = -1;
    for (int p = 0; p < a->processes; p++) {
        if (a->cards[p].silent)
            continue;
        if (first >= 0 && memcmp(hashes + (size_t)first * 32, hashes + (size_t)p * 32, 32) != 0)
            return false;
        first = first < 0 ? p : first;
    }
    return true;
}

/* Finds how many lines, from the first on, are the same in all processes; they differ in the next one. */
static trek_status find_line(const agreement *a, int64_t *found)
{
    int64_t low = 0, high = 0;
    unsigned char own[32] = { 0 }, *all = (unsigned char *)a->lines;
    for (int p = 0; p < a->processes; p++)
        high = a->cards[p].lines > high ? a->cards[p].lines : high;
    trek_status status = TREK_OK;
    while (low + 1 < high && status == TREK_OK) { /* the first `low` lines are the same, the first `high` are not */
        int64_t middle = low + (high - low) / 2;
        if (a->text)
            trek_sha256(a->text->data ? a->text->data : "", (size_t)(line_at(a->text, middle) - line_at(a->text, 0)), own);
        status = trek_comm_gather_bytes(a->comm, own, sizeof own, all);
        if (status == TREK_OK && same(a, all))
            low = middle;
        else
            high = middle;
    }
    *found = low;
    return status;
}

static trek_status read_lines(agreement *a, int64_t number)
{
    line own = { "" };
    if (a->text) {
        const char *at = line_at(a->text, number);
        snprintf(own.text, sizeof own.text, "%.*s", (int)strcspn(at, "\n"), at);
    }
    trek_status status = trek_comm_gather_bytes(a->comm, &own, sizeof own, a->lines);
    for (int p = 0; p < a->processes && status == TREK_OK; p++)
        a->lines[p].text[LINE - 1] = '\0';
    return status;
}

/* --- in words -------------------------------------------------------------------------------------------------------- */

/* Sorts processes into classes. Returns the class with the most processes; of several, the one with the lowest
 * process. */
static int sort_into_classes(agreement *a)
{
    int best = -1, most = 0;
    for (int p = 0; p < a->processes; p++) {
        a->class[p] = a->cards[p].silent ? -1 : p;
        for (int q = 0; q < p && a->class[p] == p; q++)
            if (a->class[q] == q && strcmp(a->lines[q].text, a->lines[p].text) == 0)
                a->class[p] = q;
    }
    for (int c = 0; c < a->processes; c++) {
        int n = 0;
        for (int p = 0; p < a->processes; p++)
            n += a->class[p] == c;
        if (n > most) {
            most = n;
            best = c;
        }
    }
    return best;
}

static size_t name_length(const char *text) { return strcspn(text, "\t"); }

/* Returns the word for members of a set. */
static const char *members(const agreement *a, bool several)
{
    return a->comm->control ? several ? "processes" : "process" : several ? "ranks" : "rank";
}

/* Writes e.g. "0.05 in processes 1 and 3" or "0.1 in all others"; with `named`, the name precedes the value. */
static void say_class(const agreement *a, trek_text *out, int class, bool named, bool others)
{
    const char *text = a->lines[class].text, *value = text + name_length(text);
    int n = 0, listed = 0;
    for (int p = 0; p < a->processes; p++)
        n += a->class[p] == class;
    if (*text == '\0')
        trek_text_add(out, "nothing");
    else
        trek_text_format(out, "%.*s%s%s", named ? (int)name_length(text) : 0, text, named && *value ? " " : "",
                         *value ? value + 1 : "");
    if (others && n > 1) {
        trek_text_add(out, " in all others");
        return;
    }
    trek_text_format(out, " in %s ", members(a, n > 1));
    for (int p = 0; p < a->processes && listed < LISTED; p++)
        if (a->class[p] == class)
            trek_text_format(out, "%s%d", listed++ ? ", " : "", p);
    if (n > listed)
        trek_text_format(out, " and %d more", n - listed);
}

/* Lists first those that differ from most, because they are the ones to look at. */
static trek_status fail_of_lines(agreement *a, const char *subject)
{
    int most = sort_into_classes(a), listed = 0, classes = 0;
    bool named = false;
    trek_text out = { 0 };
    const char *reference = a->lines[most].text;
    for (int p = 0; p < a->processes; p++) {
        const char *text = a->lines[p].text;
        classes += a->class[p] == p;
        named |= a->class[p] >= 0 && (name_length(text) != name_length(reference) ||
                                      strncmp(text, reference, name_length(reference)) != 0);
    }
    if (!named)
        trek_text_format(&out, "%.*s is ", (int)name_length(reference), reference);
    for (int p = 0; p < a->processes && listed < LISTED; p++)
        if (a->class[p] == p && p != most) {
            say_class(a, &out, p, named, false);
            trek_text_add(&out, ", ");
            listed++;
        }
    say_class(a, &out, most, named, listed + 1 == classes);
    trek_status status = trek_fail(TREK_ERR_ARGUMENT, "%s: %s", subject, out.failed ? "the processes differ" : out.data);
    trek_text_clear(&out);
    return status;
}

/* --- the whole --------------------------------------------------------------------------------------------------------- */

static trek_status explain(agreement *a, const char *subject)
{
    int64_t number;
    trek_status status = find_line(a, &number);
    if (status == TREK_OK)
        status = read_lines(a, number);
    return status == TREK_OK ? fail_of_lines(a, subject) : status;
}

static void fill_in(card *own, trek_status status, const trek_text *text)
{
    own->status = (int32_t)status;
    own->silent = !text;
    own->lines = count_lines(text);
    if (status != TREK_OK)
        snprintf(own->message, sizeof own->message, "%.159s",
                 trek_error_status() != TREK_OK ? trek_error() : trek_status_description(status));
    if (text)
        trek_sha256(text->data ? text->data : "", text->length, own->hash);
}

/* trek_comm_run returns an error that is already set. It is put aside, so that this process takes part nevertheless. */
static trek_status exchange_cards(agreement *a, const card *own)
{
    trek_kept_error set;
    trek_error_keep(&set);
    trek_status status = trek_comm_gather_bytes(a->comm, own, sizeof *own, a->cards);
    if (set.status == TREK_OK)
        return status;
    trek_error_clear();
    trek_error_put_back(&set);
    return set.status;
}

static trek_status compare_cards(agreement *a, const char *subject)
{
    unsigned char *hashes = (unsigned char *)a->lines;
    for (int p = 0; p < a->processes; p++)
        memcpy(hashes + (size_t)p * 32, a->cards[p].hash, 32);
    return same(a, hashes) ? TREK_OK : explain(a, subject);
}

trek_status trek_agree(trek_comm *comm, trek_status own, const char *subject, const trek_text *text)
{
    if (!comm || comm->world == 1)
        return own;
    agreement a = { .comm = comm, .processes = trek_comm_world_size(comm), .process = trek_comm_rank(comm), .text = text };
    card mine = { 0 };
    a.cards = trek_calloc((size_t)a.processes, sizeof *a.cards);
    a.lines = trek_calloc((size_t)a.processes, sizeof *a.lines);
    a.class = trek_calloc((size_t)a.processes, sizeof *a.class);
    bool room = a.cards && a.lines && a.class;
    if (own == TREK_OK && text && text->failed)
        own = TREK_ERR_MEMORY;
    fill_in(&mine, own, text);
    trek_status status = room ? exchange_cards(&a, &mine) : trek_error_status();
    if (!room)
        trek_comm_abort(comm, "a process has no memory to compare what the processes were told");
    status = own != TREK_OK ? own : status;
    for (int p = 0; p < a.processes && status == TREK_OK; p++)
        if (a.cards[p].status != TREK_OK)
            status = trek_fail(TREK_ERR_PEER, "%s: %s %d failed: %.159s", subject, members(&a, false), p, a.cards[p].message);
    if (status == TREK_OK)
        status = compare_cards(&a, subject);
    trek_free(a.cards);
    trek_free(a.lines);
    trek_free(a.class);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of the progress line. It consists of parts, of which the less important ones are left out if there is no
 * room. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "graph/graph_internal.h"
#include "graph/observe.h"
#include "monitor/progress_internal.h"

enum { MOST_PARTS = 12, BAR_LEAST = 10, BAR_MOST = 42, GAP = 2 };

typedef enum style { PLAIN, BOLD, DIM, GREEN, YELLOW, RED, CYAN } style;

static const char *const codes[] = { "", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[36m" };

/* A line's parts: texts one after the other in `words`. */
typedef struct parts {
    const trek_progress *progress;
    trek_text words;
    int n;
    struct {
        size_t from, to;
        int columns, keep;   /* those with the smallest `keep` are left out first; 0 means left out */
        style style;
    } part[MOST_PARTS];
} parts;

static void add_plain(trek_text *text, const char *name)
{
    for (const char *c = name; *c; c++) /* a name must not move the cursor */
        trek_text_bytes(text, (unsigned char)*c < 0x20 || *c == 0x7f ? "?" : c, 1);
}

char *trek_duration_format(double seconds, char *text, size_t capacity)
{
    if (!(seconds >= 0) || seconds > 1e9)
        snprintf(text, capacity, "?");
    else if (seconds < 0.9995)
        snprintf(text, capacity, "%dms", (int)(seconds * 1000 + 0.5));
    else if (seconds < 59.95) {
        int tenths = (int)(seconds * 10 + 0.5);
        snprintf(text, capacity, "%d.%ds", tenths / 10, tenths % 10);
    } else if (seconds < 3599.5) {
        int whole = (int)(seconds + 0.5);
        snprintf(text, capacity, "%dm %ds", whole / 60, whole % 60);
    } else {
        int64_t minutes = (int64_t)(seconds / 60 + 0.5);
        snprintf(text, capacity, "%lldh %dm", (long long)(minutes / 60), (int)(minutes % 60));
    }
    return text;
}

double trek_progress_remaining(const trek_progress *p, int64_t epoch, int64_t batch, int64_t now)
{
    double batches = (double)p->opts.batches, epochs_left = (double)(p->opts.epochs - epoch);
    if (p->opts.batches && p->batches_n > 0) {
        double left = epochs_left * batches - (double)batch;
        return left < 0 ? (double)NAN : left * p->batches_s / p->batches_n + epochs_left * p->overhead_s;
    }
    double begun = p->first_epoch > 0 ? (double)p->first_epoch : 0; /* a run that was resumed */
    double part = p->opts.batches ? (double)batch / batches : 0;
    return trek_eta((double)(now - p->start_ns) * 1e-9, (double)epoch + part - begun, (double)p->opts.epochs - begun);
}

static void style_on(trek_text *text, const trek_progress *p, style s)
{
    if (p->colour)
        trek_text_add(text, codes[s]);
}

static void style_off(trek_text *text, const trek_progress *p, style s)
{
    if (p->colour && s != PLAIN)
        trek_text_add(text, "\x1b[0m");
}

/* Ends a part that has been written to `words`. */
static void end_part(parts *l, style s, int keep)
{
    size_t from = l->n ? l->part[l->n - 1].to : 0;
    if (l->words.failed || l->n == MOST_PARTS)
        return;
    l->part[l->n].from = from;
    l->part[l->n].to = l->words.length;
    l->part[l->n].columns = trek_terminal_columns(&l->progress->charset, l->words.data + from, l->words.length - from);
    l->part[l->n].keep = keep;
    l->part[l->n++].style = s;
}

static int columns_of(const parts *l)
{
    int columns = 0;
    for (int k = 0; k < l->n; k++)
        if (l->part[k].keep)
            columns += l->part[k].columns + (columns ? GAP : 0);
    return columns;
}

/* Leaves parts out until the rest fits, or only one is left. */
static void leave_out(parts *l, int width)
{
    while (columns_of(l) > width) {
        int least = -1, left = 0;
        for (int k = 0; k < l->n; k++) {
            left += l->part[k].keep != 0;
            if (l->part[k].keep && (least < 0 || l->part[k].keep < l->part[least].keep))
                least = k;
        }
        if (left <= 1)
            return;
        l->part[least].keep = 0;
    }
}

/* Returns the number of columns used. */
static int write_parts(parts *l, int width, trek_text *text)
{
    const trek_progress *p = l->progress;
    int columns = 0;
    for (int k = 0; k < l->n; k++) {
        if (!l->part[k].keep)
            continue;
        if (columns)
            trek_text_add(text, "  ");
        columns += columns ? GAP : 0;
        const char *word = l->words.data + l->part[k].from;
        size_t bytes = trek_terminal_fit(&p->charset, word, l->part[k].to - l->part[k].from, width - columns);
        style_on(text, p, l->part[k].style);
        trek_text_bytes(text, word, bytes);
        style_off(text, p, l->part[k].style);
        columns += trek_terminal_columns(&p->charset, word, bytes);
    }
    return columns;
}

/* JSON has no word for a value that is not finite, but people do. */
static const char *figure(double value, char *buffer)
{
    return isnan(value) ? "nan" : isinf(value) ? (value > 0 ? "inf" : "-inf") : trek_number_text(value, 5, buffer);
}

char *trek_speed_text(double speed, char *buffer)
{
    static const char units[] = "\0kMGTP";
    int unit = 0;
    if (!isfinite(speed))
        return strcpy(buffer, "?");
    while (speed >= 999.5 && unit < 5) {
        speed /= 1000;
        unit++;
    }
    trek_number_text(speed, 3, buffer);
    size_t length = strlen(buffer);
    buffer[length] = units[unit];
    buffer[length + 1] = '\0';
    return buffer;
}

/* --- the bar -------------------------------------------------------------------------------- */

static void add_blocks(trek_text *text, int cells, double part)
{
    static const char *const eighths[] = { "", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
    int filled = (int)(part * cells * 8 + 1e-9), k = 0;
    for (; k < filled / 8; k++)
        trek_text_add(text, "█");
    if (filled % 8) {
        trek_text_add(text, eighths[filled % 8]);
        k++;
    }
    for (; k < cells; k++)
        trek_text_add(text, " ");
}

static void add_bar(trek_text *text, const trek_progress *p, int columns, double part)
{
    int cells = columns - 2, filled = (int)(part * cells + 1e-9);
    style s = part >= 1 ? GREEN : CYAN;
    trek_text_add(text, p->charset.utf8 ? "|" : "[");
    style_on(text, p, s);
    if (p->charset.utf8)
        add_blocks(text, cells, part);
    for (int k = 0; k < cells && !p->charset.utf8; k++)
        trek_text_add(text, k < filled ? "=" : k == filled && part > 0 ? ">" : " ");
    style_off(text, p, s);
    trek_text_add(text, p->charset.utf8 ? "|" : "]");
}

/* --- the ranks' line -------------------------------------------------------------------------- */

static style style_of(const char *state)
{
    return strcmp(state, "computing") == 0                                       ? GREEN
           : strcmp(state, "waiting") == 0 || strcmp(state, "reducing") == 0 ? YELLOW
           : strcmp(state, "lost") == 0                                          ? RED
                                                                                 : PLAIN;
}

static void add_rank(trek_text *text, const trek_progress *p, const trek_shown_rank *r)
{
    char number[40];
    style s = style_of(r->state);
    trek_text_add(text, "  ");
    style_on(text, p, BOLD);
    trek_text_format(text, "%lld", (long long)r->rank);
    style_off(text, p, BOLD);
    if (!isnan(r->share))
        trek_text_format(text, " %d%%", (int)(r->share * 100 + 0.5));
    style_on(text, p, s);
    if (!isnan(r->samples_per_s))
        trek_text_format(text, " %s/s", trek_speed_text(r->samples_per_s, number));
    if (*r->state && strcmp(r->state, "computing") != 0) {
        trek_text_add(text, " ");
        add_plain(text, r->state);
    }
    style_off(text, p, s);
}

static void add_states(trek_text *text, const trek_progress *p)
{
    static const char *const states[] = { "waiting", "reducing", "idle", "lost" };
    for (int k = 0; k < 4; k++) {
        int count = 0;
        for (int r = 0; r < p->n_ranks; r++)
            count += strcmp(p->ranks[r].state, states[k]) == 0;
        if (count)
            trek_text_format(text, "  %d %s", count, states[k]);
    }
}

static void add_folded(trek_text *text, const trek_progress *p)
{
    double least = (double)INFINITY, most = 0, slow = (double)INFINITY, fast = 0, sum = 0;
    int64_t slowest = -1;
    char a[40], b[40], c[40];
    for (int k = 0; k < p->n_ranks; k++) {
        const trek_shown_rank *r = &p->ranks[k];
        least = fmin(least, r->share);
        most = fmax(most, r->share);
        if (isnan(r->samples_per_s) || strcmp(r->state, "lost") == 0)
            continue;
        sum += r->samples_per_s;
        fast = fmax(fast, r->samples_per_s);
        slowest = r->samples_per_s < slow ? r->rank : slowest;
        slow = fmin(slow, r->samples_per_s);
    }
    trek_text_format(text, "%d ranks", p->n_ranks);
    if (isfinite(least))
        trek_text_format(text, "  %s%% to %s%%", trek_number_text(least * 100, 3, a), trek_number_text(most * 100, 3, b));
    if (slowest >= 0)
        trek_text_format(text, "  %s/s to %s/s (%s/s)  slowest %lld", trek_speed_text(slow, a), trek_speed_text(fast, b),
                         trek_speed_text(sum, c), (long long)slowest);
    add_states(text, p);
}

static int write_ranks(const trek_progress *p, int width, trek_text *text)
{
    trek_text line = { 0 };
    trek_text_add(&line, "ranks");
    for (int k = 0; k < p->n_ranks && (int)line.length <= 64 * width; k++)
        add_rank(&line, p, &p->ranks[k]);
    if (!line.failed && trek_terminal_columns(&p->charset, line.data, line.length) > width) {
        trek_text_clear(&line);
        add_folded(&line, p);
    }
    int columns = 0;
    if (!line.failed) {
        size_t bytes = trek_terminal_fit(&p->charset, line.data, line.length, width);
        columns = trek_terminal_columns(&p->charset, line.data, bytes);
        trek_text_bytes(text, line.data, bytes);
        if (p->colour && bytes < line.length)
            trek_text_add(text, "\x1b[0m");
    }
    text->failed |= line.failed;
    trek_text_clear(&line);
    return columns;
}

/* --- lines ---------------------------------------------------------------------------------------- */

static void add_speed(parts *l, double batches_per_s, int keep)
{
    char number[40];
    const trek_progress *p = l->progress;
    bool samples = p->opts.batch_size > 0;
    trek_text_format(&l->words, "%s %s/s", trek_speed_text(samples ? batches_per_s * (double)p->opts.batch_size : batches_per_s,
                                                           number),
                     samples ? "samples" : "batches");
    end_part(l, PLAIN, keep);
}

static void add_remaining(parts *l, double seconds, int keep)
{
    char duration[32];
    if (!(seconds > 0))
        return;
    trek_text_format(&l->words, "ETA %s", trek_duration_format(seconds, duration, sizeof duration));
    end_part(l, CYAN, keep);
}

static const char *unit_of(const trek_progress *p) { return p->opts.unit ? p->opts.unit : "epoch"; }

static void add_epoch(parts *l, int64_t epoch)
{
    trek_text_format(&l->words, "%s %lld", unit_of(l->progress), (long long)(epoch + 1));
    if (l->progress->opts.epochs)
        trek_text_format(&l->words, "/%lld", (long long)l->progress->opts.epochs);
    end_part(l, BOLD, 100);
}

static double part_of(const trek_progress *p)
{
    double part = (double)p->batch / (double)p->opts.batches;
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

/* Adds everything except the bar. */
static void add_parts(parts *l, int64_t now, double loss)
{
    const trek_progress *p = l->progress;
    char number[40];
    add_epoch(l, p->epoch);
    if (p->opts.batches) {
        trek_text_format(&l->words, "%3d%%", (int)(part_of(p) * 100));
        end_part(l, PLAIN, 6);
        trek_text_format(&l->words, "%lld/%lld", (long long)p->batch, (long long)p->opts.batches);
        end_part(l, PLAIN, 5);
    } else {
        trek_text_format(&l->words, "batch %lld", (long long)p->batch);
        end_part(l, PLAIN, 6);
    }
    if (!isnan(loss)) {
        trek_text_format(&l->words, "loss %s", figure(loss, number));
        end_part(l, GREEN, 8);
    }
    if (p->batches_n > 0 && p->batches_s > 0)
        add_speed(l, p->batches_n / p->batches_s, 3);
    trek_text_format(&l->words, "%s", trek_duration_format((double)(now - p->start_ns) * 1e-9, number, sizeof number));
    end_part(l, DIM, 2);
    if (p->opts.batches)
        add_remaining(l, trek_progress_remaining(p, p->epoch, p->batch, now), 7);
}

/* Parts less important than the bar make room for it. If there is still none, they stay. */
static bool make_room_for_bar(parts *l, int width)
{
    enum { LESS_THAN_BAR = 6 };
    parts before = *l;
    for (int least = 1; least < LESS_THAN_BAR; least++)
        for (int k = 0; k < l->n; k++)
            if (l->part[k].keep == least && columns_of(l) + 1 + BAR_LEAST > width)
                l->part[k].keep = 0;
    if (columns_of(l) + 1 + BAR_LEAST <= width)
        return true;
    *l = before;
    return false;
}

/* "epoch 2/5 |#### | 46% ...": the bar, behind the epoch, takes the room that the rest leaves. */
static int write_line(parts *l, int width, trek_text *text)
{
    const trek_progress *p = l->progress;
    bool bar = p->opts.batches > 0 && make_room_for_bar(l, width);
    int room = width - columns_of(l) - 1;
    if (!bar)
        leave_out(l, width);
    int columns = 0;
    parts first = *l;
    first.n = l->n ? 1 : 0;
    columns = write_parts(&first, width, text);
    if (bar) {
        int wide = room > BAR_MOST ? BAR_MOST : room;
        trek_text_add(text, " ");
        add_bar(text, p, wide, part_of(p));
        columns += 1 + wide;
    }
    if (l->n)
        l->part[0].keep = 0;
    if (columns_of(l) > 0) {
        trek_text_add(text, "  ");
        columns += GAP + write_parts(l, width - columns - GAP, text);
    }
    return columns;
}

int trek_progress_live(const trek_progress *p, int64_t now, double loss, int width, trek_text *text, int columns[2])
{
    parts l = { .progress = p };
    add_parts(&l, now, loss);
    columns[0] = l.words.failed ? 0 : write_line(&l, width, text);
    text->failed |= l.words.failed;
    trek_text_clear(&l.words);
    columns[1] = 0;
    if (p->n_ranks == 0)
        return 1;
    trek_text_add(text, "\x1b[K\n");
    columns[1] = write_ranks(p, width, text);
    return 2;
}

static void add_metric(trek_text *text, const trek_progress *p, const char *name, double value)
{
    char number[40];
    trek_text_add(text, "  ");
    add_plain(text, name);
    trek_text_add(text, " ");
    style_on(text, p, GREEN);
    trek_text_add(text, figure(value, number));
    style_off(text, p, GREEN);
}

void trek_progress_epoch_text(const trek_progress *p, int64_t now, const trek_epoch_line *line, trek_text *text)
{
    char number[40];
    style_on(text, p, BOLD);
    trek_text_format(text, "%s %lld", unit_of(p), (long long)(line->epoch + 1));
    if (p->opts.epochs)
        trek_text_format(text, "/%lld", (long long)p->opts.epochs);
    style_off(text, p, BOLD);
    if (line->has_loss)
        add_metric(text, p, "loss", line->loss);
    for (int k = 0; k < line->n; k++)
        add_metric(text, p, line->metrics[k].name, line->metrics[k].value);
    if (line->samples_per_s > 0)
        trek_text_format(text, "  %s samples/s", trek_speed_text(line->samples_per_s, number));
    trek_text_format(text, "  %s", trek_duration_format(line->seconds, number, sizeof number));
    double left = p->opts.epochs ? trek_progress_remaining(p, line->epoch + 1, 0, now) : 0;
    if (left > 0)
        trek_text_format(text, "  ETA %s", trek_duration_format(left, number, sizeof number));
}

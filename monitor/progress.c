/* SPDX-License-Identifier: Apache-2.0 */
/* The progress: what is done, how fast, and what is shown on the terminal. */
#include "monitor/progress.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "distributed/control/launch.h"
#include "monitor/progress_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"
#include "tensor/trace.h"

enum { REFRESH_NS = 100000000, MEASURED_NS = 10000000 }; /* 10 times a second; shorter intervals do not measure the speed */
static const double of_late_s = 20;

/* Log messages come from any thread and are printed above the line. Whoever holds the lock logs nothing. */
static pthread_mutex_t screen = PTHREAD_MUTEX_INITIALIZER;
static trek_progress *rewritten;

bool trek_progress_is_first(void)
{
    trek_launch launch;
    if (trek_error_status() != TREK_OK)
        return true;
    bool first = trek_launch_find(NULL, &launch) != TREK_OK || launch.process == 0;
    trek_error_clear(); /* the job itself will report problems with the launcher's variables */
    return first;
}

/* --- what stands on the terminal; under the lock ---------------------------------------------- */

static int width_of(const trek_progress *p)
{
    int width = p->opts.width ? p->opts.width : trek_terminal_width(fileno(p->stream));
    return width > 1 ? width - 1 : 1; /* the last column would wrap */
}

/* Moves the cursor to the beginning of the first line. A terminal that has become narrower has wrapped the lines. */
static void go_to_first_line(const trek_progress *p, int width)
{
    int rows = 0;
    for (int k = 0; k < p->lines; k++)
        rows += 1 + (p->columns[k] > 0 ? (p->columns[k] - 1) / (width + 1) : 0);
    fputs("\r", p->stream);
    if (rows > 1)
        fprintf(p->stream, "\x1b[%dA", rows - 1);
    if (rows > p->lines)
        fputs("\x1b[J", p->stream);
}

static void erase(trek_progress *p)
{
    go_to_first_line(p, width_of(p));
    fputs(p->lines > 1 ? "\x1b[J" : "\x1b[K", p->stream);
}

static void write_block(const trek_progress *p)
{
    fputs(p->block, p->stream);
    fputs("\x1b[K", p->stream);
}

static void around_message(bool before)
{
    if (before)
        pthread_mutex_lock(&screen);
    for (trek_progress *p = rewritten; p; p = p->next)
        if (p->block) {
            if (before)
                erase(p);
            else
                write_block(p);
            fflush(p->stream);
        }
    if (!before)
        pthread_mutex_unlock(&screen);
}

/* Takes ownership of the text. */
static void show(trek_progress *p, trek_text *text, int lines, const int columns[2], int width)
{
    char *block = trek_text_take(text);
    if (!block)
        return;
    pthread_mutex_lock(&screen);
    go_to_first_line(p, width);
    bool fewer = lines < p->lines;
    trek_free(p->block);
    p->block = block;
    p->lines = lines;
    memcpy(p->columns, columns, sizeof p->columns);
    write_block(p);
    if (fewer)
        fputs("\x1b[J", p->stream);
    fflush(p->stream);
    pthread_mutex_unlock(&screen);
}

/* Prints in place of the rewritten lines, which disappear or, if they stay, move below. */
static void print_line(trek_progress *p, const char *line, bool stays)
{
    pthread_mutex_lock(&screen);
    if (p->block)
        erase(p);
    fprintf(p->stream, "%s\n", line);
    if (p->block && stays) {
        write_block(p);
    } else {
        trek_free(p->block);
        p->block = NULL;
        p->lines = 0;
    }
    fflush(p->stream);
    pthread_mutex_unlock(&screen);
}

/* --- life ----------------------------------------------------------------------------------------- */

void trek_progress_set_clock(trek_progress *p, int64_t (*clock)(void))
{
    p->clock = clock;
    p->start_ns = p->epoch_start_ns = p->updated_ns = p->mark_ns = clock();
}

static void enter(trek_progress *p)
{
    pthread_mutex_lock(&screen);
    p->next = rewritten;
    rewritten = p;
    pthread_mutex_unlock(&screen);
    trek_log_set_around(around_message);
}

static void leave(trek_progress *p)
{
    pthread_mutex_lock(&screen);
    for (trek_progress **at = &rewritten; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    if (p->block) {
        fputc('\n', p->stream);
        fflush(p->stream);
    }
    pthread_mutex_unlock(&screen);
}

trek_progress *trek_progress_new_with(const trek_progress_opts *opts)
{
    if (!opts) {
        trek_fail_missing("progress_new", "opts");
        return NULL;
    }
    if (opts->epochs < 1 || opts->batches < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "progress: .epochs: %lld, .batches: %lld; must be at least 1 and 0",
                              (long long)opts->epochs, (long long)opts->batches);
    if (opts->batch_size < 0 || opts->width < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "progress: .batch_size: %lld, .width: %d; must be 0 or more",
                              (long long)opts->batch_size, opts->width);
    trek_progress *p = trek_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->opts = *opts;
    p->stream = opts->stream ? opts->stream : stderr;
    bool rewrites = trek_terminal_rewrites(fileno(p->stream));
    p->terminal = opts->terminal ? opts->terminal > 0 : rewrites;
    p->colour = opts->colour ? opts->colour > 0 : trek_terminal_colours(rewrites);
    p->quiet = !opts->all_processes && !trek_progress_is_first();
    p->charset = trek_charset_new();
    p->first_epoch = -1;
    trek_progress_set_clock(p, trek_clock_ns);
    if (p->terminal)
        enter(p);
    return p;
}

trek_progress *trek_progress_new(int64_t epochs, int64_t batches)
{
    return trek_progress_new_with(&(trek_progress_opts){ .epochs = epochs, .batches = batches });
}

void trek_progress_free(trek_progress **progress)
{
    if (!progress || !*progress)
        return;
    leave(*progress);
    trek_charset_free(&(*progress)->charset);
    trek_free((*progress)->block);
    trek_free((*progress)->ranks);
    trek_free(*progress);
    *progress = NULL;
}

/* --- how long it takes ---------------------------------------------------------------------------- */

double trek_progress_eta(const trek_progress *p, int64_t epoch, int64_t batch)
{
    return p ? trek_progress_remaining(p, epoch, batch, p->clock()) : (double)NAN;
}

/* Measures the recent speed; older measurements count less and less. */
static void measure(trek_progress *p, int64_t now)
{
    double seconds = (double)(now - p->mark_ns) * 1e-9, batches = (double)(p->batch - p->mark_batch);
    if (batches <= 0 || now - p->mark_ns < MEASURED_NS)
        return;
    double kept = exp(-seconds / of_late_s);
    p->batches_s = p->batches_s * kept + seconds;
    p->batches_n = p->batches_n * kept + batches;
    p->mark_ns = now;
    p->mark_batch = p->batch;
}

static void begin_epoch(trek_progress *p, int64_t epoch, int64_t now)
{
    if (p->first_epoch < 0)
        p->first_epoch = epoch;
    if (epoch == p->epoch)
        return;
    p->epoch = epoch;
    p->batch = p->mark_batch = 0;
    p->loss_sum = 0;
    p->losses = 0;
    if (p->first_epoch != epoch) /* the first one began together with the progress */
        p->epoch_start_ns = p->mark_ns = now;
}

/* Measures an epoch's time outside its batches, for the ends of later epochs. */
static void end_measuring(trek_progress *p, int64_t now)
{
    if (p->batch > 0) {
        double seconds = (double)(now - p->updated_ns) * 1e-9;
        p->overhead_s = p->overheads++ ? 0.5 * (p->overhead_s + seconds) : seconds;
    }
    p->epoch_start_ns = p->mark_ns = p->updated_ns = now;
    p->shown_ns = 0;
}

/* --- what is told --------------------------------------------------------------------------------- */

void trek_progress_update(trek_progress *p, int64_t epoch, int64_t batch, double loss)
{
    if (!p)
        return;
    int64_t now = p->clock();
    begin_epoch(p, epoch, p->updated_ns);
    p->batch = batch;
    p->updated_ns = now;
    if (!isnan(loss)) {
        p->loss_sum += loss;
        p->losses++;
    }
    if (p->shown_ns && now - p->shown_ns < REFRESH_NS)
        return;
    p->shown_ns = now;
    measure(p, now);
    if (!p->terminal || p->quiet)
        return;
    trek_text text = { 0 };
    int columns[2], width = width_of(p), lines = trek_progress_live(p, now, loss, width, &text, columns);
    show(p, &text, lines, columns, width);
}

void trek_progress_end_epoch(trek_progress *p, const trek_epoch_line *line)
{
    int64_t now = p->clock();
    begin_epoch(p, line->epoch, p->updated_ns);
    if (p->batch > 0 && p->updated_ns > p->mark_ns)
        measure(p, p->updated_ns);
    end_measuring(p, now);
    trek_text text = { 0 };
    trek_progress_epoch_text(p, now, line, &text);
    char *shown = p->quiet ? NULL : trek_text_take(&text);
    if (shown)
        print_line(p, shown, false);
    trek_free(shown);
    trek_text_clear(&text);
    begin_epoch(p, line->epoch + 1, now);
}

void trek_progress_epoch(trek_progress *p, int64_t epoch, const char *name, double metric)
{
    if (!p)
        return;
    int64_t now = p->clock();
    begin_epoch(p, epoch, p->updated_ns);
    trek_epoch_scalar scalar = { .name = name, .value = metric };
    double training = (double)(p->updated_ns - p->epoch_start_ns) * 1e-9;
    trek_epoch_line line = { .epoch = epoch, .has_loss = p->losses > 0, .n = name ? 1 : 0, .metrics = &scalar,
                             .seconds = (double)(now - p->epoch_start_ns) * 1e-9 };
    line.loss = p->losses ? p->loss_sum / (double)p->losses : (double)NAN;
    if (p->opts.batch_size && training > 0)
        line.samples_per_s = (double)p->batch * (double)p->opts.batch_size / training;
    trek_progress_end_epoch(p, &line);
}

trek_status trek_progress_ranks(trek_progress *p, const trek_progress_rank *ranks, int n)
{
    if (!p)
        return TREK_OK;
    if (n < 0 || (n > 0 && !ranks))
        return trek_fail(TREK_ERR_ARGUMENT, "progress_ranks: n: %d%s", n,
                         n > 0 ? "; the ranks must be given" : "; must be 0 or more");
    trek_shown_rank *kept = n ? trek_calloc((size_t)n, sizeof *kept) : NULL;
    if (n && !kept)
        return trek_error_status();
    for (int k = 0; k < n; k++) {
        kept[k] = (trek_shown_rank){ ranks[k].rank, ranks[k].share, ranks[k].samples_per_s, "" };
        snprintf(kept[k].state, sizeof kept[k].state, "%s", ranks[k].state ? ranks[k].state : "");
    }
    trek_free(p->ranks);
    p->ranks = kept;
    p->n_ranks = n;
    return TREK_OK;
}

void trek_progress_print(trek_progress *p, const char *format, ...)
{
    if (!p || p->quiet)
        return;
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *line = length >= 0 ? trek_calloc(1, (size_t)length + 1) : NULL;
    if (line) {
        vsnprintf(line, (size_t)length + 1, format, again);
        print_line(p, line, true);
        trek_free(line);
    }
    va_end(again);
    va_end(arguments);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The progress line. */
#include "monitor/progress.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "graph/graph_internal.h"
#include "tensor/trace.h"

enum { REFRESH_NS = 100000000 }; /* 10 times a second */

struct trek_progress {
    int64_t epochs, batches;
    FILE *stream;
    bool terminal, line_open;
    int64_t start_ns, epoch_start_ns, shown_ns;
    int64_t epoch;            /* that losses are summed for */
    double loss_sum;
    int64_t losses;
};

char *trek_duration_text(double seconds, char *text)
{
    if (!(seconds >= 0) || seconds > 1e9)
        snprintf(text, 32, "?");
    else if (seconds < 0.9995)
        snprintf(text, 32, "%dms", (int)(seconds * 1000 + 0.5));
    else if (seconds < 59.95) {
        int tenths = (int)(seconds * 10 + 0.5);
        snprintf(text, 32, "%d.%ds", tenths / 10, tenths % 10);
    } else if (seconds < 3599.5) {
        int whole = (int)(seconds + 0.5);
        snprintf(text, 32, "%dm %ds", whole / 60, whole % 60);
    } else {
        int64_t minutes = (int64_t)(seconds / 60 + 0.5);
        snprintf(text, 32, "%lldh %dm", (long long)(minutes / 60), (int)(minutes % 60));
    }
    return text;
}

trek_progress *trek_progress_new_with(const trek_progress_opts *opts)
{
    if (!opts) {
        trek_fail_missing("trek_progress_new", "opts");
        return NULL;
    }
    if (opts->epochs < 1 || opts->batches < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "progress: %lld epochs of %lld batches", (long long)opts->epochs,
                              (long long)opts->batches);
    trek_progress *p = trek_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->epochs = opts->epochs;
    p->batches = opts->batches;
    p->stream = opts->stream ? opts->stream : stderr;
    p->terminal = opts->terminal ? opts->terminal > 0 : isatty(fileno(p->stream));
    p->start_ns = p->epoch_start_ns = trek_clock_ns();
    return p;
}

trek_progress *trek_progress_new(int64_t epochs, int64_t batches)
{
    return trek_progress_new_with(&(trek_progress_opts){ .epochs = epochs, .batches = batches });
}

/* JSON has no word for what is not finite; people have. */
static const char *figure(double value, char *buffer)
{
    return isnan(value) ? "nan" : isinf(value) ? (value > 0 ? "inf" : "-inf") : trek_number_text(value, 5, buffer);
}

static void add_epoch(trek_text *line, const trek_progress *p, int64_t epoch)
{
    trek_text_format(line, "epoch %lld/%lld", (long long)(epoch + 1), (long long)p->epochs);
}

/* What is left, were all batches as the ones so far. `done` of a whole of 1. */
static void add_remaining(trek_text *line, const trek_progress *p, double done, int64_t now)
{
    char duration[32];
    if (done > 0 && done < 1) {
        double elapsed = (double)(now - p->start_ns) * 1e-9;
        trek_text_format(line, "  ETA %s", trek_duration_text(elapsed / done * (1 - done), duration));
    }
}

static void show(trek_progress *p, trek_text *line, bool ends)
{
    if (line->length && !line->failed) {
        /* "\r" and "erase to the end": the last line may have been longer. */
        fprintf(p->stream, "%s%s%s%s", p->terminal ? "\r" : "", line->data, p->terminal ? "\x1b[K" : "", ends ? "\n" : "");
        fflush(p->stream);
        p->line_open = !ends;
    }
    trek_text_clear(line);
}

static void begin_epoch(trek_progress *p, int64_t epoch)
{
    if (epoch == p->epoch)
        return;
    p->epoch = epoch;
    p->loss_sum = 0;
    p->losses = 0;
}

void trek_progress_update(trek_progress *p, int64_t epoch, int64_t batch, double loss)
{
    if (!p)
        return;
    begin_epoch(p, epoch);
    if (!isnan(loss)) {
        p->loss_sum += loss;
        p->losses++;
    }
    if (!p->terminal)
        return;
    int64_t now = trek_clock_ns();
    if (p->shown_ns && now - p->shown_ns < REFRESH_NS)
        return;
    p->shown_ns = now;
    char number[40];
    trek_text line = { 0 };
    add_epoch(&line, p, epoch);
    trek_text_format(&line, "  batch %lld", (long long)batch);
    if (p->batches)
        trek_text_format(&line, "/%lld", (long long)p->batches);
    if (!isnan(loss))
        trek_text_format(&line, "  loss %s", figure(loss, number));
    if (p->batches)
        add_remaining(&line, p, ((double)epoch + (double)batch / (double)p->batches) / (double)p->epochs, now);
    show(p, &line, false);
}

void trek_progress_epoch(trek_progress *p, int64_t epoch, const char *name, double metric)
{
    if (!p)
        return;
    begin_epoch(p, epoch);
    int64_t now = trek_clock_ns();
    char number[40], duration[32];
    trek_text line = { 0 };
    add_epoch(&line, p, epoch);
    if (p->losses)
        trek_text_format(&line, "  loss %s", figure(p->loss_sum / (double)p->losses, number));
    if (name)
        trek_text_format(&line, "  %s %s", name, figure(metric, number));
    trek_text_format(&line, "  %s", trek_duration_text((double)(now - p->epoch_start_ns) * 1e-9, duration));
    add_remaining(&line, p, (double)(epoch + 1) / (double)p->epochs, now);
    show(p, &line, true);
    p->epoch_start_ns = now;
    p->shown_ns = 0;
    begin_epoch(p, epoch + 1);
}

void trek_progress_free(trek_progress **progress)
{
    if (!progress || !*progress)
        return;
    if ((*progress)->line_open)
        fputc('\n', (*progress)->stream);
    trek_free(*progress);
    *progress = NULL;
}

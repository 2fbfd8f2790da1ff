/* SPDX-License-Identifier: Apache-2.0 */
/* Trains the workloads of workload.h alone and on ranks of uneven speed, in several ways, and writes the results as a report in
 * Markdown.
 *
 *   ddp_bench [--model NAME,...] [--mode NAME,...] [--ranks N] [--slow F,F,...] [--windows N] [--epochs N] [--samples N]
 *             [--batch-size N] [--lr X] [--lr-scale X] [--seeds N] [--data FOLDER] [--report FILE]
 *
 * Without --model and --mode all of them; the modes are those of train.c. --slow makes rank k slower by the k-th factor (1: as
 * it is; 1~5: another one in each second); ranks that share a batch then do so by their speeds. --windows: how many batches the
 * slowest rank runs between two meetings, in the modes that have windows. The batch is that of all ranks together, and with
 * windows that of each rank. Order of samples and learning rate are the same in all modes, but for --lr-scale: modes of several
 * ranks whose loop is the library's have it times 1 + (ranks - 1) X. --samples takes the first of each set only. --epochs 0: the
 * workload's own number. Started as several processes (trek-run) these are one job, --ranks are of each, and the modes of one
 * rank are left out. Data: --data, else TREK_DATA, else made (data.c). Time is that of training, without evaluation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "../arguments.h"

/* --- running ---------------------------------------------------------------------------------- */

/* Whether a list "a,b" has a name; NULL has all. */
static bool listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == '\0' || at[length] == ','))
            return true;
    return list == NULL;
}

/* One workload in the modes asked for. */
static bool run_workload(FILE *to, const bench *b, const workload *w)
{
    outcome *runs = calloc((size_t)b->seeds, sizeof *runs);
    const char *source = "";
    double solo_rate = 0;
    bool fine = runs != NULL, begun = false;
    for (int m = 0; fine && m < n_modes; m++) {
        if (!listed(b->modes, modes[m].name) || (modes[m].one_rank && b->processes > 1))
            continue;
        for (int k = 0; fine && k < b->seeds; k++)
            fine = bench_train(b, w, &modes[m], k + 1, &runs[k], &source);
        if (!fine)
            break;
        if (!begun)
            report_workload(to, b, w, source);
        begun = true;
        report_row(to, b, &modes[m], runs, solo_rate);
        if (modes[m].one_rank && solo_rate == 0)
            solo_rate = report_rate(b, runs);
    }
    free(runs);
    return fine;
}

/* --- arguments -------------------------------------------------------------------------------- */

/* Reads a factor at *at, and moves behind it. */
static bool read_factor(const char **at, double *factor)
{
    char *end;
    *factor = strtod(*at, &end);
    bool fine = end != *at && *factor >= 1 && *factor <= 1000;
    *at = end;
    return fine;
}

/* "1,2.5,1~5": the ranks' factors. Returns false if it is not such a list of at most b->ranks. */
static bool read_factors(bench *b)
{
    const char *at = b->slow;
    for (int k = 0; k < b->ranks; k++)
        b->factors[k] = 1;
    for (int k = 0; at && *at; k++) {
        if (k >= b->ranks || !read_factor(&at, &b->factors[k]))
            return false;
        if (*at == '~' && (at++, !read_factor(&at, &b->most[k])))
            return false;
        if (*at && (*at != ',' || !at[1]))
            return false;
        at += *at == ',';
    }
    return true;
}

static const char *model_name(int k) { return k < n_workloads ? workloads[k].name : NULL; }
static const char *mode_name(int k) { return k < n_modes ? modes[k].name : NULL; }

/* Returns whether a list has known names only; otherwise prints the known names. */
static bool check_names(const char *kind, const char *list, const char *(*name)(int k))
{
    for (const char *at = list, *end; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        int k = 0;
        while (name(k) && (strlen(name(k)) != (size_t)(end - at) || strncmp(name(k), at, (size_t)(end - at)) != 0))
            k++;
        if (name(k))
            continue;
        fprintf(stderr, "unknown %s %.*s; known are", kind, (int)(end - at), at);
        for (k = 0; name(k); k++)
            fprintf(stderr, " %s", name(k));
        return fprintf(stderr, "\n"), false;
    }
    return true;
}

static bool parse(int argc, char **argv, bench *b)
{
    const argument list[] = {
        { "--model", "NAME,...", "workloads: logistic, mlp, lenet, conv_ae, char_rnn, ... (default: all)",
          .text = &b->models },
        { "--mode", "NAME,...", "modes: solo, setup, windows, sync, cadence, ... (default: all)",
          .text = &b->modes },
        { "--ranks", "N", "rank threads of this process", .whole = &b->ranks, .least = 1, .most = MOST_RANKS },
        { "--slow", "F,F,...", "rank k is slower by the k-th factor; F~F: by another one in each second", .text = &b->slow },
        { "--windows", "N", "batches of the slowest rank between two reductions", .whole = &b->windows, .least = 1,
          .most = 100000 },
        { "--epochs", "N", "number of epochs; 0: the workload's own number", .whole = &b->epochs, .least = 0 },
        { "--samples", "N", "number of samples that are used of each set; 0: all", .whole = &b->samples, .least = 0 },
        { "--batch-size", "N", "batch size of all ranks together; with windows, of each rank (default: the workload's)",
          .whole = &b->batch_size,
          .least = 1 },
        { "--grain", "N", "samples of a grain, in the modes that have grains; 0: a sixteenth of the batch", .whole = &b->grain,
          .least = 0 },
        { "--lr", "X", "learning rate (default: the workload's)", .number = &b->lr, .least = 1e-12, .most = 1e6 },
        { "--lr-scale", "X", "multiplies the rate of modes that average by 1 + (ranks - 1) X", .number = &b->lr_scale, .least = 0,
          .most = 1e3 },
        { "--seeds", "N", "number of runs of each mode; mean and deviation are reported", .whole = &b->seeds, .least = 1,
          .most = 1000 },
        { "--data", "FOLDER", "folder of MNIST, CIFAR-10, texts; without it the program generates data", .text = &b->data },
        { "--report", "FILE", "file of the report (default: standard output)", .text = &b->report },
    };
    arguments_read(argc, argv,
                   "Trains models on one rank and, in several modes, on ranks of unequal speed, and compares the modes.", list,
                   sizeof list / sizeof *list);
    if (!read_factors(b))
        return fprintf(stderr, "--slow takes at most %d factors from 1 to 1000, such as 1,2.5,1~5, not %s\n", b->ranks, b->slow),
            false;
    return check_names("model", b->models, model_name) && check_names("mode", b->modes, mode_name);
}

/* Where the report goes; process 0 of the job alone writes one. */
static FILE *open_report(const bench *b, const trek_comm *job)
{
    const char *path = trek_comm_rank(job) > 0 ? "/dev/null" : b->report;
    FILE *to = path ? fopen(path, "w") : stdout;
    if (!to)
        fprintf(stderr, "%s cannot be written: %s\n", path, strerror(errno));
    return to;
}

static int run(bench *b, const trek_comm *job)
{
    FILE *to = open_report(b, job);
    if (!to)
        return 1;
    bool fine = true;
    b->processes = trek_comm_world_size(job);
    report_head(to, b);
    for (int k = 0; fine && k < n_workloads; k++)
        fine = !listed(b->models, workloads[k].name) || run_workload(to, b, &workloads[k]);
    if (!fine)
        fprintf(stderr, "%s\n", trek_error_status() == TREK_OK ? "out of memory" : trek_error());
    if (to != stdout && fclose(to) != 0 && fine)
        return fprintf(stderr, "%s could not be written: %s\n", b->report, strerror(errno)), 1;
    return fine ? 0 : 1;
}

int main(int argc, char **argv)
{
    bench b = { .ranks = 2, .windows = 10, .seeds = 1, .data = getenv("TREK_DATA") };
    if (!parse(argc, argv, &b))
        return 2;
    trek_comm *job = trek_comm_init(NULL);
    if (!job)
        return fprintf(stderr, "%s\n", trek_error()), 1;
    int code = run(&b, job);
    trek_comm_free(&job);
    return code;
}

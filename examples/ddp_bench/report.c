/* SPDX-License-Identifier: Apache-2.0 */
/* The report: what was trained, and a table for each workload, in Markdown. */
#include <math.h>
#include <stdio.h>

#include "bench.h"

static bool on_cpu(void) { return trek_device_default().type == TREK_CPU; }

void report_head(FILE *to, const bench *b)
{
    char rates[64] = "", processes[64] = "";
    if (b->lr_scale > 0)
        snprintf(rates, sizeof rates, " (but for `--lr-scale %g`)", b->lr_scale);
    if (b->processes > 1)
        snprintf(processes, sizeof processes, " There are %d processes.", b->processes);
    fprintf(to, "# Training on uneven ranks\n\nOne rank (`solo`) and %d%s, slowed by", b->ranks,
            b->processes > 1 ? " in each process" : "");
    for (int k = 0; k < b->ranks; k++)
        fprintf(to, b->most[k] > b->factors[k] ? "%s %g to %g" : "%s %g", k ? "," : "", b->factors[k], b->most[k]);
    fprintf(to, ". Windows are %d batches of the slowest rank. All see the same samples in the same order and have the same\n"
            "learning rate%s; a batch is that of all ranks together, with windows that of one. Mean and standard deviation over\n"
            "%d seed%s. Time is that of training alone.%s\n\n", b->windows, rates, b->seeds, b->seeds == 1 ? "" : "s", processes);
    for (int k = 0; k < n_modes; k++)
        fprintf(to, "* `%s`: %s.\n", modes[k].name, modes[k].about);
    fprintf(to, "\nUpdates: those of one rank, and all ranks' own where parameters are averaged. Averages: how often the\n"
            "ranks' gradients or parameters were brought together. Of the ideal: the throughput compared with the sum of the\n"
            "ranks' own, which is solo's, divided by each factor%s. Of their own: the same\nbeside what the ranks did while they "
            "computed. Waiting: the share of time in which they did not. MB sent: by one process,\nwhere "
            "averages are made in the background. Parameters: a checksum of the final ones, of the first seed.\n",
            on_cpu() ? ", and by the number of ranks, which share the cores that solo has for itself" : "");
    fflush(to);
}

void report_workload(FILE *to, const bench *b, const workload *w, const char *source)
{
    fprintf(to, "\n## %s: %s\n\n%s, %d epoch%s, batches of %d.", w->name, w->about, source, bench_epochs(b, w),
            bench_epochs(b, w) == 1 ? "" : "s", bench_batch(b, w));
    if (w->published > 0)
        fprintf(to, " Published, on the whole of the real data: %s %g after %d epochs.", w->accuracy ? "accuracy" : "test loss",
                w->published, w->published_epochs);
    fprintf(to, "\n\n| mode | updates | averages | training loss | test loss | accuracy | seconds | samples/s | of the ideal "
            "| of their own | waiting | MB sent | parameters |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    fflush(to);
}

/* --- of several runs ----------------------------------------------------------------------------- */

static double mean(const outcome *runs, int n, double (*of)(const outcome *r))
{
    double sum = 0;
    for (int k = 0; k < n; k++)
        sum += of(&runs[k]);
    return sum / n;
}

static double loss_of(const outcome *r) { return r->loss; }
static double test_loss_of(const outcome *r) { return r->test_loss; }
static double accuracy_of(const outcome *r) { return r->accuracy; }
static double seconds_of(const outcome *r) { return r->seconds; }
static double steps_of(const outcome *r) { return (double)r->steps; }
static double sent_of(const outcome *r) { return r->bytes_sent > 0 ? (double)r->bytes_sent * 1e-6 : (double)NAN; }
static double averages_of(const outcome *r) { return (double)r->averages; }
static double waiting_of(const outcome *r) { return r->waiting; }
static double rate_of(const outcome *r) { return r->seconds > 0 ? r->samples / r->seconds : 0; }
static double part_of_own(const outcome *r) { return r->own_rate > 0 ? rate_of(r) / r->own_rate : (double)NAN; }

double report_rate(const bench *b, const outcome *runs) { return mean(runs, b->seeds, rate_of); }

/* " 0.1234 ± 0.0012 |", and nothing of what is not known. */
static void cell_of_spread(FILE *to, const bench *b, const outcome *runs, double (*of)(const outcome *r))
{
    double m = mean(runs, b->seeds, of), squares = 0;
    for (int k = 0; k < b->seeds; k++)
        squares += (of(&runs[k]) - m) * (of(&runs[k]) - m);
    if (isnan(m))
        fprintf(to, " |");
    else if (b->seeds == 1)
        fprintf(to, " %.4f |", m);
    else
        fprintf(to, " %.4f ± %.4f |", m, sqrt(squares / (b->seeds - 1)));
}

static void cell(FILE *to, const char *format, double value)
{
    if (isnan(value))
        fprintf(to, " |");
    else
        fprintf(to, format, value);
}

/* Returns the speed of a rank, or its mean if it changes. */
static double speed_of(const bench *b, int rank)
{
    double least = b->factors[rank], most = b->most[rank];
    return most > least ? log(most / least) / (most - least) : 1 / least;
}

void report_row(FILE *to, const bench *b, const mode *m, const outcome *runs, double solo_rate)
{
    double speeds = 0, rate = report_rate(b, runs);
    int n = b->seeds;
    bool alone = m->one_rank;
    for (int k = 0; k < b->ranks; k++)
        speeds += speed_of(b, k) / (on_cpu() ? b->ranks : 1);
    fprintf(to, "| %s | %.0f | %.0f |", m->name, mean(runs, n, steps_of), mean(runs, n, averages_of));
    cell_of_spread(to, b, runs, loss_of);
    cell_of_spread(to, b, runs, test_loss_of);
    cell_of_spread(to, b, runs, accuracy_of);
    fprintf(to, " %.1f | %.0f |", mean(runs, n, seconds_of), rate);
    cell(to, " %.2f |", solo_rate > 0 ? rate / (solo_rate * (alone ? 1 : speeds)) : (double)NAN);
    cell(to, " %.2f |", alone ? (double)NAN : mean(runs, n, part_of_own));
    cell(to, " %.2f |", alone || m->by_hand ? (double)NAN : mean(runs, n, waiting_of));
    cell(to, " %.2f |", mean(runs, n, sent_of));
    fprintf(to, " `%08llx` |\n", (unsigned long long)(runs[0].bits & 0xffffffffu));
    fflush(to);
}

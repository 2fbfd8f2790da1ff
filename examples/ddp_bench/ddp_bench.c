/* SPDX-License-Identifier: Apache-2.0 */
/* Trains the workloads of workload.h alone and on ranks of uneven speed, and writes what
 * came of it as a table in Markdown.
 *
 *   ddp_bench [--model NAME] [--mode solo|setup|both] [--ranks N] [--slow F,F,...] [--windows N] [--epochs N] [--samples N]
 *             [--batch-size N] [--lr X] [--seeds N] [--data FOLDER] [--report FILE]
 *
 * Without --model all of them. solo: one rank. setup: N ranks in this process behind the same loop; --slow makes rank k slower
 * by the k-th factor (1: as it is), and shares then follow the speeds; --windows N lets ranks run whole batches at their own
 * pace, at most N of the slowest between two steps. The batch is that of all ranks together; order, learning rate and number
 * of updates are the same in both modes (windows: fewer updates of more samples). --samples takes the first of each set only.
 * --epochs 0: the workload's own number. Data: --data, else TREK_DATA, else made (data.c). Time is that of training, without
 * evaluation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/arguments.h"
#include "workload.h"

enum { MOST_RANKS = 64, EVAL_BATCH = 250 };

typedef struct options {
    const char *model, *mode, *slow, *data, *report;
    int ranks, windows, epochs, samples, batch_size, seeds;
    double lr;
    double factors[MOST_RANKS];
} options;

/* One training. */
typedef struct outcome {
    double loss, measure, seconds, samples; /* loss: mean of the last epoch; samples: seen in all */
    int64_t steps;
} outcome;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- one training ----------------------------------------------------------------------- */

static double train_epoch(trek_graph *graph, int64_t epoch, outcome *o)
{
    double sum = 0, seen = 0, begin = now();
    trek_graph_start(graph, epoch);
    for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph)) {
        double size = (double)trek_batch_size(batch);
        trek_var *loss = trek_graph_train_batch(graph, batch);
        sum += loss ? trek_var_item(loss) * size : 0;
        seen += size;
    }
    o->seconds += now() - begin;
    o->samples += seen;
    return seen > 0 ? sum / seen : 0;
}

static double evaluate(const workload *w, trek_graph *graph, trek_loader *test)
{
    double sum = 0, weight = 0;
    trek_graph_train(graph, false);
    trek_no_grad_begin();
    trek_loader_start(test, 0);
    for (trek_batch *batch; (batch = trek_loader_next(test)); )
        if (!workload_measure(w, graph, batch, &sum, &weight))
            break;
    trek_no_grad_end();
    trek_graph_train(graph, true);
    return weight > 0 ? sum / weight : 0;
}

static void set_up(const workload *w, const options *o, bool solo, int64_t steps, trek_graph *graph)
{
    trek_slowdown slowdowns[MOST_RANKS] = { { 0 } };
    bool uneven = false;
    for (int k = 0; k < o->ranks; k++) {
        slowdowns[k] = (trek_slowdown){ .factor = o->factors[k], .sleep = true };
        uneven |= o->factors[k] != o->factors[0];
    }
    double lr = o->lr > 0 ? o->lr : w->lr;
    trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = w->build,
        .ranks = solo ? 1 : o->ranks,
        .optimizer = w->optimizer(lr),
        .schedule = w->schedule ? w->schedule(lr, steps) : (trek_schedule){ 0 },
        .balance = !solo && uneven ? 1 : 0,
        .max_anchor = !solo && o->windows > 0 ? o->windows : TREK_OFF,
        .slowdowns = solo ? NULL : slowdowns,
    });
}

/* False and an error on failure. */
static bool train(const workload *w, const options *o, bool solo, int seed, outcome *result, const char **source)
{
    *result = (outcome){ 0 };
    trek_seed((uint64_t)seed);
    workload_data data = workload_open(w->data, o->data, o->samples);
    *source = data.source;
    trek_loader *loader = trek_loader_new(data.train, &(trek_loader_opts){
        .batch_size = o->batch_size ? o->batch_size : w->batch_size, .shuffle = true, .seed = (uint64_t)seed, .drop_last = true
    });
    trek_loader *test = trek_loader_new(data.test, &(trek_loader_opts){ .batch_size = EVAL_BATCH });
    trek_graph *graph = loader && test ? w->build(trek_device_default(), NULL) : NULL;
    int epochs = o->epochs ? o->epochs : w->epochs;
    if (graph) {
        trek_graph_set_loader(graph, loader, w->field);
        trek_graph_set_loss(graph, w->loss, NULL);
        set_up(w, o, solo, trek_loader_batches(loader) * epochs, graph);
        for (int epoch = 0; epoch < epochs && trek_error_status() == TREK_OK; epoch++)
            result->loss = train_epoch(graph, epoch, result);
        result->steps = trek_graph_steps(graph);
        result->measure = trek_error_status() == TREK_OK ? evaluate(w, graph, test) : 0;
    }
    trek_graph_free(&graph);
    trek_loader_free(&test);
    trek_loader_free(&loader);
    return trek_error_status() == TREK_OK;
}

/* --- the table ------------------------------------------------------------------------------ */

static void write_head(FILE *to, const options *o)
{
    fprintf(to, "# Training on uneven ranks\n\n");
    fprintf(to, "`setup` is %d ranks, slowed by", o->ranks);
    for (int k = 0; k < o->ranks; k++)
        fprintf(to, "%s %g", k ? "," : "", o->factors[k]);
    fprintf(
        to,
        "%s. Both modes see the same samples in the same order. Mean and standard deviation over %d seed%s. "
        "\"Of the ideal\" is the throughput beside the sum of the ranks' own: solo's, divided by each factor, and on CPUs by the "
        "number of ranks, which share the cores that solo has for itself.\n\n",
        o->windows > 0 ? ", which run windows of whole batches" : ", which share each batch", o->seeds, o->seeds == 1 ? "" : "s");
    fprintf(to,
            "| model | data | mode | epochs | updates | training loss | measure | published | seconds | samples/s | of the ideal "
            "|\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    fflush(to);
}

static double mean(const outcome *o, int n, double (*of)(const outcome *o))
{
    double sum = 0;
    for (int k = 0; k < n; k++)
        sum += of(&o[k]);
    return sum / n;
}

static double loss_of(const outcome *o) { return o->loss; }
static double measure_of(const outcome *o) { return o->measure; }
static double seconds_of(const outcome *o) { return o->seconds; }
static double steps_of(const outcome *o) { return (double)o->steps; }
static double rate_of(const outcome *o) { return o->seconds > 0 ? o->samples / o->seconds : 0; }

static void write_row(FILE *to, const workload *w, const options *o, bool solo, const outcome *runs, const char *source,
                      double solo_rate)
{
    double measure = mean(runs, o->seeds, measure_of), rate = mean(runs, o->seeds, rate_of), squares = 0, speeds = 0;
    bool on_cpu = trek_device_default().type == TREK_CPU;
    char published[64] = "", ideal[32] = "";
    for (int k = 0; k < o->seeds; k++)
        squares += (runs[k].measure - measure) * (runs[k].measure - measure);
    double deviation = o->seeds > 1 ? sqrt(squares / (o->seeds - 1)) : 0;
    for (int k = 0; k < o->ranks; k++)
        speeds += 1 / o->factors[k] / (on_cpu ? o->ranks : 1);
    if (w->published > 0)
        snprintf(published, sizeof published, "%g after %d epochs", w->published, w->published_epochs);
    if (!solo && solo_rate > 0)
        snprintf(ideal, sizeof ideal, "%.2f", rate / (solo_rate * speeds));
    fprintf(to, "| %s | %s | %s | %d | %.0f | %.4f | %s %.4f ± %.4f | %s | %.1f | %.0f | %s |\n", w->name, source,
            solo ? "solo" : o->windows > 0 ? "setup, windows" : "setup", o->epochs ? o->epochs : w->epochs,
            mean(runs, o->seeds, steps_of), mean(runs, o->seeds, loss_of), w->accuracy ? "accuracy" : "loss", measure, deviation,
            published, mean(runs, o->seeds, seconds_of), rate, ideal);
    fflush(to);
}

/* One workload in the modes asked for. */
static bool run_workload(FILE *to, const workload *w, const options *o)
{
    outcome *runs = calloc((size_t)o->seeds, sizeof *runs);
    const char *source = "";
    double solo_rate = 0;
    bool fine = runs != NULL;
    for (int solo = 1; fine && solo >= 0; solo--) {
        if (strcmp(o->mode, solo ? "setup" : "solo") == 0)
            continue;
        for (int k = 0; fine && k < o->seeds; k++)
            fine = train(w, o, solo, k + 1, &runs[k], &source);
        if (!fine)
            break;
        write_row(to, w, o, solo, runs, source, solo_rate);
        solo_rate = solo ? mean(runs, o->seeds, rate_of) : solo_rate;
    }
    free(runs);
    return fine;
}

/* --- arguments -------------------------------------------------------------------------------- */

/* "1,2.5": the ranks' factors. False: it is no such list of at most o->ranks. */
static bool read_factors(options *o)
{
    const char *at = o->slow;
    for (int k = 0; k < o->ranks; k++)
        o->factors[k] = 1;
    for (int k = 0; at && *at; k++) {
        char *end;
        double factor = strtod(at, &end);
        if (k >= o->ranks || end == at || !(factor >= 1 && factor <= 1000) || (*end && (*end != ',' || !end[1])))
            return false;
        o->factors[k] = factor;
        at = *end ? end + 1 : end;
    }
    return true;
}

static bool parse(int argc, char **argv, options *o)
{
    const argument list[] = {
        { "--model", "NAME", .text = &o->model },
        { "--mode", "solo|setup|both", .text = &o->mode },
        { "--ranks", "N", .whole = &o->ranks, .least = 1, .most = MOST_RANKS },
        { "--slow", "F,F,...", .text = &o->slow },
        { "--windows", "N", .whole = &o->windows, .least = 0, .most = 100000 },
        { "--epochs", "N", .whole = &o->epochs, .least = 0 },
        { "--samples", "N", .whole = &o->samples, .least = 0 },
        { "--batch-size", "N", .whole = &o->batch_size, .least = 1 },
        { "--lr", "X", .number = &o->lr, .least = 1e-12, .most = 1e6 },
        { "--seeds", "N", .whole = &o->seeds, .least = 1, .most = 1000 },
        { "--data", "FOLDER", .text = &o->data },
        { "--report", "FILE", .text = &o->report },
    };
    if (!arguments_read(argc, argv, list, sizeof list / sizeof *list))
        return false;
    if (strcmp(o->mode, "solo") != 0 && strcmp(o->mode, "setup") != 0 && strcmp(o->mode, "both") != 0)
        return fprintf(stderr, "--mode takes solo, setup or both, not %s\n", o->mode), false;
    if (!read_factors(o))
        return fprintf(stderr, "--slow takes at most %d factors from 1 to 1000, not %s\n", o->ranks, o->slow), false;
    if (o->model && !workload_find(o->model)) {
        fprintf(stderr, "there is no model %s; there are", o->model);
        for (int k = 0; k < n_workloads; k++)
            fprintf(stderr, " %s", workloads[k].name);
        return fprintf(stderr, "\n"), false;
    }
    return true;
}

int main(int argc, char **argv)
{
    options o = { .mode = "both", .ranks = 2, .seeds = 1, .data = getenv("TREK_DATA") };
    if (!parse(argc, argv, &o))
        return 2;
    FILE *to = o.report ? fopen(o.report, "w") : stdout;
    if (!to)
        return fprintf(stderr, "%s cannot be written: %s\n", o.report, strerror(errno)), 1;
    write_head(to, &o);
    bool fine = true;
    for (int k = 0; fine && k < n_workloads; k++)
        if (!o.model || strcmp(o.model, workloads[k].name) == 0)
            fine = run_workload(to, &workloads[k], &o);
    if (!fine)
        fprintf(stderr, "%s\n", trek_error_status() == TREK_OK ? "out of memory" : trek_error());
    if (o.report && fclose(to) != 0 && fine)
        return fprintf(stderr, "%s could not be written: %s\n", o.report, strerror(errno)), 1;
    return fine ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What is expected of an elastic run: read from what its processes wrote, and trained again by one process with as many ranks. */
#include <math.h>
#include <signal.h>
#include <unistd.h>

#include "distributed/checkpoint.h"
#include "graph/settings.h"
#include "nn/state_modules.h"
#include "tests/distributed/run/elastic.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* One line of a rank, of a step that so many ranks tried. What its process tried with the model before was dropped. */
static void take_line(history *own, const char *line, int built, int *last)
{
    int step, ranks, used;
    if (sscanf(line, "saw %d %d%n", &step, &ranks, &used) != 2 || step < 0 || step >= EPOCHS * STEPS)
        return;
    long samples[SAMPLES];
    int n = 0;
    char *end;
    for (const char *at = line + used; *at == ' ' && n < SAMPLES; at = end)
        samples[n++] = strtol(at, &end, 10);
    if (own->built[step] != built)
        memset(own->seen[step], 0, sizeof own->seen[step]);
    own->built[step] = built;
    for (int k = 0; k < n; k++)
        own->seen[step][samples[k] % SAMPLES] = 1;
    own->ranks[step] = ranks;
    *last = step;
}

/* What a process saw of a step, into what all saw. More ranks than the fewest: that try was dropped. A process that wrote nothing
 * later may have died in the step: it is unsure whether that was tried again, by as many where a joiner has come. Then others
 * have seen its samples. */
static void merge_step(history *all, const history *own, int step, bool sure)
{
    if (own->ranks[step] == 0)
        return;
    if (all->ranks[step] == 0 || (sure && own->ranks[step] < all->ranks[step])) {
        all->ranks[step] = own->ranks[step];
        memset(all->seen[step], 0, sizeof all->seen[step]);
    }
    for (int i = 0; i < SAMPLES && own->ranks[step] == all->ranks[step]; i++)
        all->seen[step][i] += own->seen[step][i] && (sure || all->seen[step][i] == 0);
}

history read_history(const world *w)
{
    static history own[PROCESSES];
    int last[PROCESSES];
    history all = { .ranks = { 0 } };
    for (int p = 0; p < w->n; p++) {
        memset(&own[p], 0, sizeof own[p]);
        last[p] = -1;
        int built = 0;
        for (const char *at = w->text[p], *end; (end = strchr(at, '\n')); at = end + 1) { /* those that were written whole */
            built += strncmp(at, "built.", 6) == 0;
            if (strncmp(at, "saw ", 4) == 0 && end[-1] == '.')
                take_line(&own[p], at, built, &last[p]);
        }
        if (strstr(w->text[p], "final "))
            last[p] = EPOCHS * STEPS;
    }
    for (int unsure = 0; unsure < 2; unsure++)
        for (int p = 0; p < w->n; p++)
            for (int step = 0; step < EPOCHS * STEPS; step++)
                if ((step >= last[p]) == unsure)
                    merge_step(&all, &own[p], step, !unsure);
    return all;
}
static bool all_seen_once(const history *h)
{
    bool good = true;
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < SAMPLES; i++) {
            int times = 0;
            for (int s = e * STEPS; s < (e + 1) * STEPS; s++)
                times += h->seen[s][i];
            if (times != 1 && good)
                fprintf(stderr, "ERROR: sample %d was seen %d times in epoch %d\n", i, times, e);
            good = good && times == 1;
        }
    return good;
}

static trek_graph *set_up(int ranks, trek_loader *loader, bool averages)
{
    trek_seed(5);
    const trek_device *devices = elastic_devices(0, ranks);
    trek_graph *graph = build(devices ? devices[0] : trek_cpu(0), NULL);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .ranks = ranks, .devices = devices, .optimizer = training_adam(), .max_anchor = TREK_OFF,
        .average = averages ? TREK_AVERAGE_PARAMETERS : TREK_AVERAGE_GRADIENTS }), TREK_OK);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, train_step, NULL);
    trek_graph_train(graph, true);
    return graph;
}

/* One process with as many ranks as there were processes, which saves and is resumed on fewer where they became fewer. */
static double number_of(const history *h, bool averages)
{
    char path[] = "/tmp/trek-elastic-XXXXXX";
    trek_dataset *data = training_dataset();
    int file = mkstemp(path), ranks = h->ranks[0];
    trek_loader *loader = trek_loader_new(trek_dataset_retain(data), &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true,
                                                                                         .seed = 5, .device = test_device() });
    trek_graph *graph = set_up(ranks, loader, averages);
    for (int step = 0; step < EPOCHS * STEPS; step++) {
        if (step % STEPS == 0)
            trek_graph_start(graph, step / STEPS);
        if (h->ranks[step] != ranks) {
            ranks = h->ranks[step];
            assert_int_equal(trek_checkpoint_save(graph, loader, path), TREK_OK);
            trek_graph_free(&graph);
            graph = set_up(ranks, loader, averages);
            assert_int_equal(trek_checkpoint_load(graph, loader, path), TREK_OK);
        }
        trek_batch *batch = trek_graph_next(graph);
        assert_non_null(batch);
        assert_non_null(trek_graph_train_batch(graph, batch));
        assert_int_equal(trek_graph_step(graph), TREK_OK);
    }
    trek_state *state = trek_state_of(trek_graph_module(graph));
    double number = number_of_state(state);
    trek_state_free(&state);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_dataset_free(&data);
    close(file);
    unlink(path);
    return number;
}

bool has_died(const world *w, int p) { return w->code[p] == -SIGKILL && !strstr(w->text[p], "final "); }

int arrivals_from = PROCESSES;

static bool has_gone(const world *w, int p)
{
    return has_died(w, p) || (p >= arrivals_from && w->code[p] == 1 && strstr(w->text[p], "TREK_ERR_"));
}

double result_of(const world *w, int p)
{
    const char *final = strstr(w->text[p], "final ");
    int epochs;
    double number;
    bool good = final && sscanf(final, "final %d epochs number %lf", &epochs, &number) == 2 &&
                (p < arrivals_from ? epochs == EPOCHS : epochs > 0 && epochs <= EPOCHS);
    return good ? number : NAN;
}

/* Whether a process has ended with what it should, and with the bits of the others. Gloo's rings add in an order of their own,
 * which batch norm's layers make more of. */
static bool is_result(double got, double number, double others)
{
    bool gloo = strcmp(processes_engine(), "gloo") == 0;
    bool near = gloo || plain ? fabs(got - number) < (gloo ? 1e-6 * fabs(number) : 1e-9) : got == number;
    return near && ((plain && !mixed) || isnan(others) || got == others);
}

bool is_good(const world *w, int left, bool averages)
{
    history h = read_history(w);
    bool good = all_seen_once(&h);
    double number = good ? number_of(&h, averages) : NAN, others = NAN;
    int lived = 0;
    for (int p = 0; p < w->n; p++) {
        if (has_gone(w, p))
            continue;
        lived++;
        double got = result_of(w, p);
        bool same = is_result(got, number, others);
        others = got;
        if (!same)
            fprintf(stderr, "ERROR: process %d has %.17g instead of %.17g\n", p, got, number);
        good = good && same && (w->code[p] == 0 || w->code[p] == -SIGKILL) && !strstr(w->text[p], "are left\n");
    }
    if (!good || lived != left)
        fprintf(stderr, "ERROR: %d of %d processes were to be left, %d are\n", left, w->n, lived);
    return good && lived == left;
}

void assert_good(const world *w, int left)
{
    WANT(w, is_good(w, left, false));
}

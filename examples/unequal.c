/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of unequal speed: some ranks are made slower than others, and the library divides the work. The program shows how long
 * each rank waits, which share it gets, and how the windows grow.
 *
 *   unequal [--mode equal|shares|windows] [--slow X,X,...] [--epochs N] [--batch-size N] [--checkpoint FOLDER] ...
 *   trek-run -n 2 ./unequal ...        with this number of ranks in each of two processes
 *
 * equal: each rank gets the same part of each batch, and the fast ranks wait for the slow ones. shares: the parts of each batch
 * follow measured times. windows (El Che): each rank makes steps with whole batches at its own pace, and all ranks average after
 * a window. --slow: for each rank the factor by which a batch takes longer; there are as many ranks as factors. */
#define _POSIX_C_SOURCE 200809L /* NOLINT(bugprone-reserved-identifier): it is for this */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"
#include "training.h"

enum { MOST_RANKS = 16 };

typedef struct options {
    training common;
    const char *mode, *slow;
    int ranks;
    double factors[MOST_RANKS];
} options;

static trek_graph *build_model(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_conv2d(1, 6, 5, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_conv2d(6, 16, 5, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(256, 10, device));
    return trek_flow_build(flow);
}

static trek_var *loss(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    trek_record_scalar("accuracy", trek_accuracy(logits, trek_batch_get(batch, "label")));
    return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
}

/* --- what comes of it ------------------------------------------------------------------------ */

/* A line for each epoch, and one for each rank: its share of the samples, and how much of the time it worked. */
static void tell(const options *o, const trek_epoch_metrics *m)
{
    printf("epoch %d  loss %.4f  accuracy %.4f  test accuracy %.4f  %d steps", (int)m->epoch + 1, m->loss,
           trek_metrics_get(m, "accuracy"), trek_metrics_get(m, "evaluation.accuracy"), (int)m->steps);
    if (m->anchor > 0)
        printf("  window: the slowest rank runs %d batches", (int)m->anchor);
    printf("\n");
    for (int r = 0; r < m->ranks && m->ranks > 1; r++) {
        const trek_rank_metrics *rank = &m->per_rank[r];
        double all = rank->compute_s + rank->waiting_s;
        printf("  rank %d, slowed by %g: %5.1f%% of the samples, computes %5.1f%% of the time\n", r,
               o->factors[r % o->ranks],
               100 * rank->share, all > 0 ? 100 * rank->compute_s / all : 0);
    }
    fflush(stdout);
}

static void train(const options *o, trek_dataset *digits, trek_dataset *test, bool first)
{
    bool windows = strcmp(o->mode, "windows") == 0, shares = strcmp(o->mode, "shares") == 0;
    trek_run *run = trek_trainer_run(&(trek_run_opts){
        .build_model       = build_model,
        .train_step        = loss,
        .dataset           = digits,
        .input             = "image",
        .optimizer         = trek_adam(&(trek_adam_opts){ .lr = o->common.lr }),
        .batch_size        = o->common.batch_size,
        .shuffle           = true,
        .epochs            = o->common.epochs,
        .seed              = o->common.seed,
        .evaluation        = test,
        .evaluation_batch  = 500,
        .policy            = windows ? TREK_POLICY_CADENCE : TREK_POLICY_SYNC,
        .trainer           = { .ranks = o->ranks, .anchor = windows ? 2 : 0,
                               .max_anchor = windows ? 8 : 0, .balance = shares ? 1 : windows ? 0 : TREK_OFF,
                               .average = windows ? TREK_AVERAGE_PARAMETERS : TREK_AVERAGE_GRADIENTS },
        .checkpoint_folder = o->common.checkpoint,
        .resume_from       = o->common.checkpoint,
    });
    if (!run) /* an option is missing, or contradicts another */
        return;
    double seconds = 0, compute = 0, all = 0;
    for (trek_epoch_metrics m; trek_run_next(run, &m); ) {
        if (first)
            tell(o, &m);
        seconds += m.seconds;
        for (int r = 0; r < m.ranks; r++) {
            compute += m.per_rank[r].compute_s;
            all += m.per_rank[r].compute_s + m.per_rank[r].waiting_s;
        }
    }
    trek_state *trained = trek_run_join(run); /* NULL and an error if it failed */
    if (trained && first && o->common.save)
        trek_state_write(trained, o->common.save);
    if (trained && first && seconds > 0)
        printf("%.2f s; ranks computed %.0f%% of this time\n", seconds, 100 * compute / all);
    trek_state_free(&trained);
}

/* --- the program -------------------------------------------------------------------------------- */

/* Reads "1,1,3", a factor for each rank, and hands them to trek: "1s,1s,3s", ranks that sleep as if they waited for a slower
 * device. Returns false if the text is not such a list. */
static bool read_factors(options *o)
{
    char text[MOST_RANKS * 16] = "";
    const char *at = o->slow;
    for (o->ranks = 0; o->ranks < MOST_RANKS; at++) {
        char *end;
        double factor = strtod(at, &end);
        if (end == at || !(factor >= 1 && factor <= 1000) || (*end != ',' && *end != '\0'))
            return false;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%gs", o->ranks > 0 ? "," : "", factor);
        o->factors[o->ranks++] = factor;
        if (*end == '\0')
            return setenv("TREK_SLOWDOWN", text, 1) == 0;
        at = end;
    }
    return false;
}

int main(int argc, char **argv)
{
    options o = { .common = { .epochs = 4, .batch_size = 64, .lr = 2e-3, .seed = 1, .without = "--ranks --quiet" },
                  .mode = "windows", .slow = "4,4,12" };
    const argument own[] = {
        { "--mode", "equal|shares|windows", "how the work is divided", .choice = &o.mode },
        { "--slow", "X,X,...", "factor by which a batch takes longer on each rank", .text = &o.slow },
    };
    training_read(argc, argv, "Trains a model of digits on ranks of unequal speed.", &o.common, own, 2);
    if (!read_factors(&o))
        return fprintf(stderr, "--slow takes at most %d factors from 1 to 1000, not %s\n", MOST_RANKS, o.slow), 2;
    training_stop_by_signals();
    trek_comm *job = trek_comm_init(NULL); /* of the processes of the job; alone a world of one */
    digits data = digits_open(o.common.data, 4000, 1000);
    train(&o, data.train, data.test, trek_comm_rank(job) == 0);
    trek_dataset_free(&data.train);
    trek_dataset_free(&data.test);
    trek_comm_free(&job);
    return training_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The library owns the loop: a run that learns digits, tells of each epoch, keeps checkpoints, and goes on after it was stopped.
 *
 *   runs [--policy sync|cadence|async] [--ranks N] [--epochs N] [--batch-size N] [--lr X] [--patience N] [--data FOLDER]
 *        [--seed N] [--folder FOLDER]
 *   trek-run -n 2 ./runs ...      the same on two processes
 *
 * sync: the ranks divide each batch and make one step, that of one device. cadence: each makes steps of its own, at its own
 * pace, and after a window of batches they average. async: the same, averaged in the background: nobody waits.
 * Ctrl-C stops it after its present step. Called again with the same folder it goes on from there (sync: bit for bit).
 * --folder: where checkpoints are kept and looked for. --data: MNIST's IDX files; default: the folder mnist/ of TREK_DATA
 * where they are, else digits are drawn. --patience: stop after so many epochs that were not the best. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "digits.h"
#include "trek.h"

typedef struct options {
    int ranks, epochs, batch_size, patience;
    double lr;
    uint64_t seed;
    const char *policy, *data, *folder;
} options;

/* Called for each rank. */
static trek_graph *build_model(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_conv2d(1, 8, 5, device)); /* [n, 1, 28, 28] -> [n, 8, 24, 24] */
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_conv2d(8, 16, 5, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));                    /* [n, 16, 4, 4] */
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_dropout(0.2));
    trek_flow_through(flow, trek_nn_linear(256, 10, device));
    return trek_flow_build(flow);
}

/* The loss of a batch, on whatever rank has it; what it records is of all ranks. It serves the evaluation, too. */
static trek_var *train_step(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    trek_record_scalar("accuracy", trek_accuracy(logits, trek_batch_get(batch, "label")));
    return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
}

static volatile sig_atomic_t ended_by; /* the signal */

static void on_signal(int number)
{
    ended_by = number;
    trek_request_stop(); /* which may be called from here; NOLINT(bugprone-signal-handler) */
    signal(number, SIG_DFL); /* the second one ends the program at once */
}

static void print_epoch(const trek_epoch_metrics *m)
{
    printf("epoch %d  loss %.4f  accuracy %.4f  test loss %.4f  test accuracy %.4f%s  %.0f images/s", (int)m->epoch + 1, m->loss,
           trek_metrics_get(m, "accuracy"), m->evaluation_loss, trek_metrics_get(m, "evaluation.accuracy"), m->best ? " *" : "",
           m->samples_per_s);
    for (int r = 0; m->ranks > 1 && r < m->ranks; r++)
        printf("%s%.0f%%", r ? " + " : ", of the ranks ", 100 * m->per_rank[r].share);
    printf("\n");
    fflush(stdout);
}

static void train(const options *o, const digits *data, bool first)
{
    bool sync = strcmp(o->policy, "sync") == 0, async = strcmp(o->policy, "async") == 0;
    trek_run *run = trek_trainer_run(&(trek_run_opts){
        .build_model       = build_model,
        .train_step        = train_step,
        .dataset           = data->train,
        .input             = "image",
        .optimizer         = trek_adam(&(trek_adam_opts){ .lr = o->lr }),
        .batch_size        = o->batch_size,
        .shuffle           = true,
        .epochs            = o->epochs,
        .seed              = o->seed,
        .policy            = sync ? TREK_POLICY_SYNC : async ? TREK_POLICY_ASYNC : TREK_POLICY_CADENCE,
        .transport         = async ? TREK_TRANSPORT_HOST : TREK_TRANSPORT_DEVICE,
        .trainer           = { .ranks = o->ranks, .average = sync ? TREK_AVERAGE_GRADIENTS : TREK_AVERAGE_PARAMETERS },
        .evaluation        = data->test,
        .evaluation_batch  = 500,
        .best_metric       = "evaluation.accuracy",
        .best_is_largest   = true,
        .patience          = o->patience,
        .checkpoint_folder = o->folder,
        .keep_best         = true, /* best.safetensors, next to the last one */
        .resume_from       = o->folder,
    });
    if (!run) /* an option is missing, or contradicts another */
        return;
    for (trek_epoch_metrics m; trek_run_next(run, &m); )
        if (first)
            print_epoch(&m);
    bool stopped = trek_stop_requested();
    trek_state *trained = trek_run_join(run); /* NULL and an error if it failed */
    if (trained && first)
        printf(stopped ? "stopped; the same call goes on from %s\n" : "trained; its state is in %s\n", o->folder);
    trek_state_free(&trained);
}

static void parse(int argc, char **argv, options *o)
{
    const argument list[] = {
        { "--policy", "sync|cadence|async", "how ranks learn from each other", .choice = &o->policy },
        { "--ranks", "N", "rank threads (default: the devices of TREK_DEVICES, or one)", .whole = &o->ranks, .least = 1,
          .most = 1024 },
        { "--epochs", "N", "times through the data", .whole = &o->epochs, .least = 1 },
        { "--batch-size", "N", "samples of a step, of all ranks together", .whole = &o->batch_size, .least = 1 },
        { "--lr", "X", "learning rate", .number = &o->lr, .least = 1e-12, .most = 1e6 },
        { "--patience", "N", "stop after so many epochs that were not the best (default: never)", .whole = &o->patience,
          .least = 0 },
        { "--data", "FOLDER", "MNIST's IDX files (default: TREK_DATA/mnist, else digits are drawn)", .text = &o->data },
        { "--seed", "N", "of initial values, order and noise", .seed = &o->seed },
        { "--folder", "FOLDER", "where checkpoints are kept and looked for", .text = &o->folder },
    };
    arguments_read(argc, argv, "The library owns the loop: a run that keeps checkpoints and goes on from them.", list,
                   sizeof list / sizeof *list);
}

int main(int argc, char **argv)
{
    options o = { .policy = "sync", .epochs = 5, .batch_size = 64, .lr = 1e-3, .seed = 1, .folder = "runs" };
    char place[4096];
    parse(argc, argv, &o);
    if (!o.data && getenv("TREK_DATA") && snprintf(place, sizeof place, "%s/mnist", getenv("TREK_DATA")) < (int)sizeof place &&
        digits_are_in(place))
        o.data = place;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    trek_comm *job = trek_comm_init(NULL); /* the processes, where there are several; else a world of one */
    digits data = digits_open(o.data, 8000, 2000);
    train(&o, &data, trek_comm_rank(job) == 0);
    trek_dataset_free(&data.train);
    trek_dataset_free(&data.test);
    trek_comm_free(&job);
    if (trek_error_status() == TREK_OK) /* after Ctrl-C what shells expect; trek-run would take that for a failure */
        return ended_by && trek_comm_world_described(NULL) == 1 ? 128 + ended_by : 0;
    fprintf(stderr, "%s\n", trek_error());
    return 1;
}

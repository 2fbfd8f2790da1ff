/* SPDX-License-Identifier: Apache-2.0 */
/* What examples that train have in common: their options, stopping by Ctrl-C, files, the end. */
#ifndef TREK_EXAMPLES_TRAINING_H
#define TREK_EXAMPLES_TRAINING_H

#include <signal.h>

#include "arguments.h"
#include "trek.h"

/* Set the defaults, then training_read. */
typedef struct training {
    int epochs, batch_size, ranks;
    double lr;
    uint64_t seed;
    const char *data;          /* files, or a folder of them; NULL: the example makes its own */
    const char *checkpoint;    /* where the run is kept; NULL: nowhere */
    const char *save;          /* the trained model, safetensors; NULL: it is not kept */
    bool quiet;
    const char *shared;        /* the name in TREK_DATA that training_data is asked for; NULL: it is not */
    const char *without;       /* names of those that an example has no use for, "--ranks --save"; NULL: it has all */
} training;

enum { MOST_ARGUMENTS = 48 };

static volatile sig_atomic_t training_signal;     /* that has asked for an end; 0: none */
static const char *const *training_checkpoint;    /* training_read's */

/* Reads the common options and the example's own (own: n_own of them). Comes back only if all were understood and `save` can
 * be written: else the program ends as arguments_read says. */
static inline void training_read(int argc, char **argv, const char *about, training *t, const argument *own, int n_own)
{
    static char data[160] = "what is learnt from (default: made by the program)";
    if (t->shared)
        snprintf(data, sizeof data, "what is learnt from (default: %.64s in TREK_DATA, where that is; else made by the program)",
                 t->shared);
    training_checkpoint = &t->checkpoint;
    const argument common[] = {
        { "--epochs", "N", "times through the data", .whole = &t->epochs, .least = 1 },
        { "--batch-size", "N", "samples of a step, of all ranks together", .whole = &t->batch_size, .least = 1 },
        { "--lr", "X", "learning rate", .number = &t->lr, .least = 1e-12, .most = 1e6 },
        { "--ranks", "N", "rank threads of this process (default: the devices of TREK_DEVICES, or one)", .whole = &t->ranks,
          .least = 1, .most = 1024 },
        { "--seed", "N", "of initial values, order and noise", .seed = &t->seed },
        { "--data", "PATH", data, .text = &t->data },
        { "--checkpoint", "PATH", "keeps the run there after each epoch; the same call goes on from it, bit for bit",
          .text = &t->checkpoint },
        { "--save", "FILE", "writes the trained model there, as safetensors", .text = &t->save },
        { "--quiet", "", "no progress line", .flag = &t->quiet },
    };
    argument all[MOST_ARGUMENTS];
    int n = 0;
    for (size_t k = 0; k < sizeof common / sizeof *common; k++) {
        const char *at = t->without ? strstr(t->without, common[k].name) : NULL;
        size_t length = strlen(common[k].name);
        if (!at || (at[length] != '\0' && at[length] != ' '))
            all[n++] = common[k];
    }
    for (int k = 0; k < n_own && n < MOST_ARGUMENTS; k++)
        all[n++] = own[k];
    arguments_read(argc, argv, about, all, n);
    if (t->save && !argument_can_be_written(t->save))
        exit(1); /* sooner than after an hour of training */
}

static inline void training_on_signal(int number)
{
    training_signal = number;
    trek_request_stop();     /* which may be called from here; NOLINT(bugprone-signal-handler) */
    signal(number, SIG_DFL); /* the second one ends the program at once */
}

/* Ctrl-C and SIGTERM ask for an end in good order: trek_trainer_run's runs see it by themselves, other loops by
 * trek_stop_requested. */
static inline void training_stop_by_signals(void)
{
    signal(SIGINT, training_on_signal);
    signal(SIGTERM, training_on_signal);
}

static inline bool file_is_there(const char *path)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (file)
        fclose(file);
    return file != NULL;
}

/* --data, or where it was not given the file or folder of that name (.shared) in TREK_DATA, if it is there (for a folder: if it
 * has `file`); else NULL. */
static inline const char *training_data(const training *t, const char *name, const char *file)
{
    static char path[4096], inside[4200];
    const char *folder = getenv("TREK_DATA");
    if (t->data || !folder || snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return t->data;
    snprintf(inside, sizeof inside, file ? "%s/%s" : "%s", path, file);
    return file_is_there(inside) ? path : NULL;
}

/* A loop of one's own goes on from its checkpoint, if there is one: the epoch to begin with, and *resumed. */
static inline int64_t training_resume(const training *t, trek_graph *graph, trek_loader *loader, bool *resumed)
{
    int64_t epoch = 0, batch = 0;
    *resumed = file_is_there(t->checkpoint) && trek_checkpoint_load(graph, loader, t->checkpoint) == TREK_OK;
    if (*resumed) {
        trek_loader_position(loader, &epoch, &batch);
        if (batch >= trek_loader_batches(loader)) { /* it was kept at an epoch's end */
            epoch++;
            *resumed = false;
        }
    }
    return epoch;
}

/* What main returns: the error, if there is one, is told. After Ctrl-C, how to go on, and the status that shells know (130, after
 * SIGTERM 143), so that what was to follow does not. A process among others leaves both to trek-run, which has had the
 * signal itself, and would end the others if one had failed. */
static inline int training_end(void)
{
    if (trek_error_status() == TREK_OK && training_signal && trek_comm_world_described(NULL) == 1) {
        const char *kept = training_checkpoint ? *training_checkpoint : NULL;
        fprintf(stderr, kept ? "stopped; the same call goes on from %s\n"
                : "stopped; nothing is kept (--checkpoint PATH keeps a run)%s\n",
                kept ? kept : "");
        return 128 + training_signal;
    }
    if (trek_error_status() == TREK_OK)
        return 0;
    fprintf(stderr, "%s\n", trek_error());
    return 1;
}

#endif

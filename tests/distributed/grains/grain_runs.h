/* SPDX-License-Identifier: Apache-2.0 */
/* Six small models that are trained in grains, or without, and the digest of what comes of it. */
#ifndef TREK_TESTS_GRAIN_RUNS_H
#define TREK_TESTS_GRAIN_RUNS_H

#include "data/loader.h"
#include "distributed/trainer.h"

enum { MLP, CONV_AND_BATCH_NORM, GPT, LSTM, TIED_EMBEDDING, DROPOUT_AND_RECOMPUTATION, MODELS };
enum { MIXED = MODELS }; /* one more, with parameters in bf16 and in f32 */
extern const char *const grain_models[MODELS];

typedef struct grain_run {
    int model;
    int grain;               /* samples of a grain; 0: no grains; TREK_GRAIN */
    int ranks;               /* of this process */
    bool separate;           /* parameters of their own */
    bool sharded;            /* the optimizer's state is divided; it is not part of the digest */
    void (*on_failed)(trek_graph *graph); /* when a step has failed */
    int64_t budget;          /* in bytes, of each rank, where state is divided; 0: none, or budgets that differ */
    int divided;             /* with it and `separate`, on CPUs: 1: gradients are, too; 2: that, and parameters */
    const double *shares;    /* [all ranks of the job] NULL: equal */
    int n_shares;
    trek_dtype autocast;     /* F32: none */
    bool fp8;                /* products of 8 bits: GPT and TIED_EMBEDDING have some */
    bool scaled, clipped, freezes, evaluates;
    int overflow;            /* if scaled: the step from 1 on in which one sample gives inf; 0: none */
    int accumulate;          /* 0 and 1: one pass a step */
    int optimizer;           /* 0 to 3, of all kinds; 4 to 6: Adafactor, Adam with state in u8, Muon (matrices only) */
    int batch, steps;
    int again;               /* k: what the grains of a step have given is dropped, and process k - 1 runs them all again */
    int holds;               /* k: process k - 1 stays in its first grain until no other one is left. It has one rank */
    bool slow;               /* grains take random times */
    bool one_device;         /* all ranks are on the same GPU; otherwise each has its own, as far as there are any */
    struct trek_comm *comm;
    int place;               /* without it: of the process whose GPUs it has */
    int piece;               /* blocks of the pieces in which sums are added; 0: the usual number */
    bool unrecorded;         /* what was recorded is not part of the digest */
    bool whole;              /* all of its steps, also on the fake device */
    bool silent;             /* nothing is recorded */
    bool captured;           /* passes are made by trek_graph_capture */
    int min_processes;       /* with it: the job goes on while so many are left; 0: it does not outlive any */
    void (*on_joined)(trek_graph *graph); /* called in a process that has joined the others, before its loop */
    void (*after_step)(trek_graph *graph);
    void (*on_epoch)(trek_graph *graph); /* at its end, before an evaluation */
    bool writes;             /* the program writes parameters after the second step */
    bool last_only;          /* the digest is that of the end, and of the last step; processes that come know no others */
} grain_run;

enum { GRAIN_MOST = 8192 };
typedef struct grain_result {
    uint64_t digest;         /* of parameters, buffers, the optimizer's state, the norms of gradients, the losses of training, and
                              * what was recorded */
    double losses[64];
    int n_losses, n;
    int world;               /* ranks at the end */
    int64_t grain;           /* samples of a grain */
    int64_t joined;          /* after so many steps this process has joined the others; 0: it has not */
    int64_t most_grains;     /* that this process ran in a step */
    int64_t replays;         /* captured passes all of whose grains were replayed */
    char problem[200];       /* why grains are not replayed; "": they are */
    double params[GRAIN_MOST]; /* and buffers */
} grain_result;

/* Whether the last model draws numbers that belong to no sample: those of grains are others than those of a whole batch. */
extern bool grain_noise;
/* Trains. Returns false with an error. On the fake device, unless TREK_TEST_LONG is set, it makes a few steps only, and where GPT
 * is to be trained with 16-bit products, TIED_EMBEDDING is. */
bool grain_train(const grain_run *run, grain_result *result);
/* Parts of it, for programs with a loop of their own: set up a graph over a loader of grain_dataset, with a loss that reads *run;
 * and add parameters, buffers and the optimizer's state to the digest. */
trek_graph *grain_set_up(const grain_run *run, trek_loader *loader);
bool grain_add_state(const grain_run *run, trek_graph *graph, grain_result *result);
/* Draws a run of up to `ranks` ranks, the same for the same state of the generator. */
grain_run grain_draw(uint64_t *state, int ranks);
/* Whether case k of a list is run. On the fake device, where a case takes a second under the thread sanitizer, every third is,
 * unless TREK_TEST_LONG is set. */
bool grain_takes(int k);
/* Builds a model; arg: its number, an int. */
trek_graph *grain_build(trek_device device, void *arg);
/* Puts the GPUs of ranks from the first-th of a job on into a list, one for each as far as there are any, and returns it; NULL on
 * the CPU. */
const trek_device *grain_devices_from(int first, int ranks, trek_device *devices);
/* Fills in the devices of this process's ranks. On GPUs processes have one after the other, as far as there are any; with `one`
 * all have the first. Returns the list; NULL on CPUs, where trek finds them. */
enum { GRAIN_RANKS = 8 };
const trek_device *grain_devices(struct trek_comm *comm, int ranks, bool one, trek_device *devices);
/* Changes bits of a byte in the memory of a device. */
void grain_flip(trek_device device, void *address, unsigned char bits);
/* The data that all models are trained on. */
struct trek_dataset *grain_dataset(void);

#endif

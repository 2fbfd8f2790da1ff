/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a monitor: its file, and what writes to it. */
#ifndef TREK_MONITOR_MONITOR_INTERNAL_H
#define TREK_MONITOR_MONITOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "graph/timeline_times.h"
#include "monitor/monitor.h"
#include "nn/text.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* A GPU that ranks of this process work on. */
typedef struct trek_monitor_gpu {
    trek_device device;
    unsigned char uuid[16];
    int64_t memory;                  /* its memory in bytes */
} trek_monitor_gpu;
enum { TREK_MONITOR_GPUS = 64, TREK_MONITOR_DEVICE_NAME = 192 };

/* What the graph's modules took in the measured steps (profile.c). */
typedef struct trek_monitor_profile {
    pthread_mutex_t lock;            /* of sums, samples, told; written by the thread that trains */
    trek_module_times sums;          /* of the process's first rank */
    int capacity;                    /* of their list */
    int64_t samples, told;           /* steps in the sums; in those of the last record */
    double forwards;                 /* for each of their passes */
    /* of the thread that trains */
    trek_timeline *timeline;         /* NULL if there is none yet */
    int64_t every;                   /* one step in this many; 0 for none */
    int64_t next_step, next_ns;      /* no step before both of these is measured */
    int passes, tried;               /* of the current one; samples that were begun */
    bool measuring;
} trek_monitor_profile;

struct trek_monitor {
    char *path, *file_path, *wish_path;
    pthread_mutex_t lock;            /* of the file, and of what the sampling thread reads */
    pthread_cond_t ending;
    pthread_t sampler;
    bool sampling, ends, tensorboard;
    int file;                        /* -1 if there is none */
    int events;                      /* TensorBoard's; -1 if there is none */
    int64_t events_step;             /* the last step reported there */
    atomic_bool warned;
    bool torn;                       /* the file does not end with a whole line */
    int process, processes;
    char *run, *program;
    double started;
    int64_t interval_ns;

    /* guarded by the lock; written by the thread that trains */
    trek_graph *graph;
    int64_t epochs, epoch, batch, batches;
    int64_t began_ns, scalars_ns, looked_ns, rate_samples, rate_ns;
    bool introduced, ranked;         /* run and graph records have been written for this graph; for any graph yet */
    int first_rank, local_ranks, ranks;
    double *shares;                  /* [local_ranks] */
    trek_monitor_gpu gpus[TREK_MONITOR_GPUS];
    int n_gpus;
    int64_t parameters;
    int64_t anchor, window;
    bool windows;
    double drift, loss;
    trek_status failed;
    char error[TREK_ERROR_SIZE];
    bool stopped, in_run;
    trek_monitor_profile profile;

    /* Written by the thread that trains, without the lock. */
    atomic_llong step;
    atomic_int left;                 /* steps until it reads the clock, including this one; at most 1 in the step that does */
    int64_t paced_ns, paced_step;    /* when it last read it */
    uint32_t chance;
    bool heard, comes;               /* in this step: a loss came before a point was due; a point is coming */
    int64_t loader_epoch, loader_batch, loader_batches; /* of the last step's batch; -1 if it came from no loader */
    double last_loss;                /* of a CPU's pass, in the step after loss_step; NaN if there is none */
    int64_t loss_step, point_step, told_step; /* told_step, point_step: of the last progress, the last point */
    /* of the sampler */
    int64_t sampled_ns;
    struct trek_monitor_lane *sampled; /* what each rank had counted then */
    int64_t seen_step;
};

/* --- record.c: lines --- */
/* {"kind":"...","time":...: fields follow, each with its comma. */
void trek_monitor_begin(trek_text *line, const char *kind);
void trek_monitor_word(trek_text *line, const char *key, const char *value); /* any bytes */
void trek_monitor_number(trek_text *line, const char *key, double value);
void trek_monitor_known(trek_text *line, const char *key, double value); /* writes nothing for NaN */
void trek_monitor_whole(trek_text *line, const char *key, int64_t value);
/* Writes a number alone, in JSON's form. */
void trek_monitor_value(trek_text *line, double value);
void trek_monitor_string(trek_text *line, const char *value);
/* Ends the line, writes it whole and clears it. Takes the lock. Never fails, and leaves the thread's error unchanged. */
void trek_monitor_write(trek_monitor *monitor, trek_text *line);
void trek_monitor_open(trek_monitor *monitor);
/* Opens a file of the run's folder for appending, and makes it if necessary; never follows a link. Returns -1 and
 * errno on failure. */
int trek_monitor_open_file(const trek_monitor *monitor, const char *name, int flags);

/* --- live_events.c: TensorBoard's file next to it --- */
void trek_monitor_events_open(trek_monitor *monitor);
/* Adds a line without its end. Called with the lock held. Leaves the error unchanged. */
void trek_monitor_events_add(trek_monitor *monitor, const char *line, size_t length);

/* --- lanes.c: what ranks of this process do --- */
typedef struct trek_monitor_lane {
    int64_t computing_ns, waiting_ns, reducing_ns, samples;
    int now;                         /* 0: nothing; 1: computing, 2: waiting, 3: reducing */
} trek_monitor_lane;
enum { TREK_MONITOR_LANES = 1024 };
void trek_monitor_lanes_listen(bool on);
/* Called by the thread that trains. rest: from now on spans of lane 0 are ignored. sample: those of the step that
 * begins are observed. The last one: this step has ended, and stands for the time since the rest began. */
void trek_monitor_lanes_rest(int64_t now);
void trek_monitor_lanes_sample(int64_t now);
void trek_monitor_lanes_sampled(int64_t now);
/* Ends a rest, because nobody knows when the next step comes. Any thread may call it. */
void trek_monitor_lanes_wake(void);
trek_monitor_lane trek_monitor_lane_read(int rank); /* totals since the process began to listen */
int64_t trek_monitor_samples(int ranks);

/* --- sampler.c --- */
void trek_monitor_sampler_start(trek_monitor *monitor);
void trek_monitor_sampler_stop(trek_monitor *monitor);

/* --- devices.c: what ranks work on --- */
/* Returns the device of one of this process's ranks. Called by the thread that trains. */
trek_device trek_monitor_device(const trek_monitor *monitor, int rank);
/* Writes a name such as "NVIDIA H100" or "Intel(R) Xeon(R), 8 cores" into TREK_MONITOR_DEVICE_NAME bytes. Returns
 * false if there is none. */
bool trek_monitor_device_name(trek_device device, char *name);
/* Sets gpus. Called by the thread that trains. */
void trek_monitor_find_gpus(trek_monitor *monitor);
/* Adds trek's memory by device and what is known of the GPUs, as fields of "system". Called by the sampling thread. */
void trek_monitor_add_devices(trek_text *line, trek_monitor *monitor);

/* --- nvml.c: what NVIDIA's driver tells --- */
typedef struct trek_nvml_told {
    double memory_bytes, memory_total_bytes, temperature_c, power_w, utilization_percent; /* NaN if unknown */
    const char *throttled;           /* "no", "power", "heat", "hardware"; NULL if unknown */
} trek_nvml_told;
/* Queries the GPU with that UUID, or part of a GPU (MIG). May set an error. */
trek_nvml_told trek_nvml_look(const unsigned char uuid[16]);

/* --- histogram.c --- */
trek_status trek_monitor_histogram_of(trek_monitor *monitor, const char *name, const char *of, int64_t step,
                                      const trek_tensor *values);

/* --- profile.c: what modules take, of some steps --- */
enum { TREK_MONITOR_PROFILE_EVERY = 128 };
void trek_monitor_profile_init(trek_monitor_profile *profile, int every); /* from monitor_opts.profile_every */
void trek_monitor_profile_clear(trek_monitor_profile *profile);
void trek_monitor_profile_end(trek_monitor_profile *profile);
/* Called after a step: ends this step's measurement and begins the next one if it is due. `now` is trek_clock_ns. */
void trek_monitor_profile_step(trek_monitor *monitor, trek_graph *graph, int64_t step, int64_t now);
/* Called before the graph or its monitor goes: writes what has not been reported yet. */
void trek_monitor_profile_finish(trek_monitor *monitor, trek_graph *graph);

/* --- image.c --- */
trek_status trek_monitor_image_of(trek_monitor *monitor, const char *name, int64_t step, const trek_tensor *image);

/* --- graph_record.c --- */
trek_status trek_monitor_graph_record(trek_monitor *monitor, trek_graph *graph);

/* --- tell.c --- */
void trek_monitor_introduce(trek_monitor *monitor);
void trek_monitor_log_line(trek_monitor *monitor, trek_log_level level, const char *text);
typedef struct trek_monitor_point {
    const char *name;
    double value;
} trek_monitor_point;
/* Called at an epoch's end in a program's own loop. */
void trek_monitor_flushed(trek_monitor *monitor, int64_t epoch, const trek_monitor_point *values, int n);

/* --- identity.c: names, and nothing that is open yet --- */
trek_monitor *trek_monitor_make(const trek_monitor_opts *opts);
void trek_monitor_drop(trek_monitor *monitor);

#endif

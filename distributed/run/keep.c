/* SPDX-License-Identifier: Apache-2.0 */
/* A run's checkpoints: FOLDER/step-NUMBER.safetensors, of which the last ones are kept, and best.safetensors. The
 * run's thread makes snapshots, and at the end of epochs learns what has become of them. A writer makes files of
 * them. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/loader_position.h"
#include "distributed/checkpoint_internal.h"
#include "distributed/job/agreement.h"
#include "distributed/reduce/sharded.h"
#include "distributed/reduce/twice.h"
#include "distributed/rounds/averaging.h"
#include "distributed/run/run_internal.h"
#include "distributed/run/writer.h"
#include "distributed/stepper.h"
#include "distributed/team/observations.h"
#include "nn/replace_file.h"
#include "nn/state_modules.h"

#define BEST "best.safetensors"

/* Returns the step in a file's name, or -1 if it is another file. */
static int64_t step_of(const char *name)
{
    long long step;
    int used = 0;
    return sscanf(name, "step-%lld.safetensors%n", &step, &used) == 1 && used > 0 && name[used] == '\0' && step >= 0 ? step : -1;
}

static char *path_of(const char *folder, const char *name) { return trek_format("%s/%s", folder, name); }
static char *path_of_step(const char *folder, int64_t step)
{
    return trek_format("%s/step-%012lld.safetensors", folder, (long long)step);
}

/* Lists the steps of the folder's files in a new array, descending. *n 0: the folder has none or does not exist. */
static int64_t *list_steps(const char *folder, int *n)
{
    int64_t *steps = NULL;
    int room = 0;
    DIR *list = opendir(folder);
    *n = 0;
    for (struct dirent *entry; list && (entry = readdir(list));) {
        int64_t step = step_of(entry->d_name);
        if (step < 0)
            continue;
        if (trek_array_grow(&steps, &room, *n + 1, sizeof *steps) != TREK_OK)
            break;
        int at = (*n)++;
        for (; at > 0 && steps[at - 1] < step; at--)
            steps[at] = steps[at - 1];
        steps[at] = step;
    }
    if (list)
        closedir(list);
    return steps;
}

/* Removes files of which the program has been informed, up to the step `heard`, except the last ones. Runs on the
 * writer's thread. */
static void remove_old(int64_t heard, void *arg)
{
    const trek_run_opts *o = arg;
    int n, keep = o->keep_last ? o->keep_last : 1;
    int64_t *steps = o->keep_last == TREK_OFF ? NULL : list_steps(o->checkpoint_folder, &n);
    for (int k = keep; steps && k < n; k++) {
        if (steps[k] > heard)
            continue;
        char *path = path_of_step(o->checkpoint_folder, steps[k]);
        if (path)
            unlink(path);
        trek_free(path);
    }
    trek_free(steps);
}

static trek_status make_folder(const char *folder)
{
    struct stat there;
    if (mkdir(folder, 0777) == 0) {
        trek_replace_sync_parent(folder); /* otherwise a new folder of checkpoints is lost in a power failure, with everything
                                           * in it */
        return TREK_OK;
    }
    if (errno == EEXIST && stat(folder, &there) == 0 && S_ISDIR(there.st_mode))
        return TREK_OK;
    return trek_fail(TREK_ERR_IO, "trainer_run: .checkpoint_folder: %s cannot be made: %s", folder, strerror(errno));
}

/* Returns whether this process writes. */
static bool writes(const trek_run *run)
{
    return run->opts.checkpoint_folder && trek_graph_job(run->graph)->process == 0;
}

/* Announces that this process is writing: others may have to wait for it, and then know that it is not stuck. */
static void say(const trek_run *run, const char *what)
{
    trek_comm_say(trek_graph_job(run->graph)->comm, what);
}

/* Runs on the writer's thread. The best checkpoint is a second name of the last one's file, if the file system
 * supports that. */
static trek_status write_snapshot(const run_snapshot *snapshot, void *arg)
{
    (void)arg;
    bool linked = false;
    trek_status status = snapshot->step ? trek_state_write(snapshot->state, snapshot->step) : TREK_OK;
    if (status == TREK_OK && snapshot->best && snapshot->step)
        status = trek_replace_by_link(snapshot->step, snapshot->best, &linked);
    if (status == TREK_OK && snapshot->best && !linked)
        status = trek_state_write(snapshot->state, snapshot->best);
    return status;
}

static trek_status call_back(trek_run *run, int64_t epoch, const char *path)
{
    const trek_run_opts *o = &run->opts;
    trek_status status = path && o->on_checkpoint ? o->on_checkpoint(run->graph, epoch, path, o->arg) : TREK_OK;
    if (status != TREK_OK)
        trek_fail_after(status, "trainer_run: .on_checkpoint: it failed");
    return status == TREK_OK ? trek_error_status() : status;
}

/* Removes the checkpoint of a stop within an epoch once there is a later one: the others are those of a run that was
 * not stopped. */
static void remove_stopped(trek_run *run, int64_t heard)
{
    if (run->stopped_step == 0 || heard <= run->stopped_step)
        return;
    char *path = run->opts.keep_last == TREK_OFF ? NULL : path_of_step(run->opts.checkpoint_folder, run->stopped_step);
    if (path)
        unlink(path);
    trek_free(path);
    run->stopped_step = 0;
}

/* Learns what has become of earlier snapshots: files, which are reported to the program, or an error. */
static trek_status hear(trek_run *run)
{
    trek_status status = TREK_OK;
    int64_t heard = -1;
    for (run_snapshot *next, *s = trek_run_writer_take(run->writer); s; s = next) {
        next = s->next;
        status = status == TREK_OK ? call_back(run, s->epoch, s->step) : status;
        status = status == TREK_OK ? call_back(run, s->epoch, s->best) : status;
        heard = s->step && status == TREK_OK ? s->steps : heard;
        trek_run_snapshot_free(s);
    }
    remove_stopped(run, heard);
    if (heard >= 0)
        trek_run_writer_tidy(run->writer, heard);
    return status == TREK_OK ? trek_run_writer_status(run->writer) : status;
}

static trek_rounds *rounds_of(const trek_run *run) { return trek_ranks_rounds(trek_graph_ranks(run->graph)); }

/* Adds the outer optimizer's momentum to what checkpoints hold. */
static trek_status add_momentum(const trek_run *run, trek_state *state)
{
    int64_t n = 0;
    const trek_rounds *rounds = rounds_of(run);
    const float *momentum = rounds ? trek_rounds_momentum(rounds, &n) : NULL;
    trek_tensor *tensor = momentum ? trek_tensor_from_data(momentum, trek_shape_make(&n, 1), TREK_F32, trek_cpu(0)) : NULL;
    if (!momentum)
        return TREK_OK;
    trek_status status = tensor ? trek_state_add(state, TREK_CHECKPOINT_MOMENTUM, tensor) : trek_error_status();
    trek_tensor_release(tensor);
    return status;
}

/* Adds what is known of the epoch that is under way. Early stopping and the best checkpoint are decided from it
 * and from the rest of the epoch. */
static trek_status add_epoch(const trek_run *run, trek_state *state)
{
    if (!run->within)
        return TREK_OK;
    trek_text text = { 0 };
    trek_text_bytes(&text, (const char *)&run->begun, sizeof run->begun);
    trek_text_bytes(&text, run->recorded.data, run->recorded.length);
    text.failed |= run->recorded.failed;
    trek_tensor *tensor = text.failed ? NULL
        : trek_tensor_from_data(text.data, trek_dims((int64_t)text.length), TREK_U8, trek_cpu(0));
    trek_status status = tensor ? trek_state_add(state, TREK_CHECKPOINT_EPOCH, tensor)
        : text.failed ? TREK_ERR_MEMORY : trek_error_status();
    trek_tensor_release(tensor);
    trek_text_clear(&text);
    return status;
}

/* What was recorded belongs to all processes and ranks; the first process has it. */
static trek_status take_epoch(trek_run *run, const trek_tensor *tensor)
{
    size_t size = trek_tensor_dtype(tensor) == TREK_U8 ? (size_t)trek_tensor_numel(tensor) : 0;
    const char *bytes = trek_tensor_data(tensor);
    if (size < sizeof run->before)
        return trek_fail(TREK_ERR_FORMAT, "trainer_run: .resume_from: its part about the epoch is damaged");
    memcpy(&run->before, bytes, sizeof run->before);
    return trek_graph_job(run->graph)->process > 0 ? TREK_OK
        : trek_observations_unpack(run->graph, bytes + sizeof run->before, (int64_t)(size - sizeof run->before));
}

trek_status trek_run_take_rest(trek_run *run, const trek_state *state)
{
    trek_rounds *rounds = run->opts.outer ? rounds_of(run) : NULL;
    if (!rounds && !run->resumed)
        return TREK_OK;
    trek_tensor *momentum = rounds ? trek_state_find(state, TREK_CHECKPOINT_MOMENTUM) : NULL;
    trek_tensor *epoch = run->resumed ? trek_state_find(state, TREK_CHECKPOINT_EPOCH) : NULL;
    trek_status status = trek_error_status();
    if (momentum && trek_tensor_dtype(momentum) == TREK_F32)
        status = trek_rounds_take_momentum(rounds, trek_tensor_data(momentum), trek_tensor_numel(momentum));
    if (status == TREK_OK && epoch)
        status = take_epoch(run, epoch);
    return status;
}

trek_state *trek_run_state(const trek_run *run, const double *numbers)
{
    trek_state *state = trek_checkpoint_snapshot(run->graph, run->train, numbers, TREK_RUN_NUMBERS);
    if (state && (add_momentum(run, state) != TREK_OK || add_epoch(run, state) != TREK_OK))
        trek_state_free(&state);
    return state;
}

/* Makes a snapshot of the current state. */
static trek_status give_snapshot(trek_run *run, int64_t epoch, bool step, bool best)
{
    const trek_run_opts *o = &run->opts;
    double more[TREK_RUN_NUMBERS] = { [TREK_RUN_BEST] = run->best, [TREK_RUN_SINCE_BEST] = (double)run->since_best };
    run_snapshot *s = trek_run_snapshot_new(epoch);
    if (!s)
        return trek_error_status();
    s->steps = trek_graph_steps(run->graph);
    say(run, "save");
    trek_run_writer_make_room(run->writer, step && o->keep_last <= 1 && o->keep_last != TREK_OFF);
    s->step = step ? path_of_step(o->checkpoint_folder, s->steps) : NULL;
    s->best = best ? path_of(o->checkpoint_folder, BEST) : NULL;
    s->state = trek_run_state(run, more);
    if (trek_error_status() == TREK_OK)
        trek_run_writer_give(run->writer, s);
    else
        trek_run_snapshot_free(s);
    say(run, NULL);
    return trek_error_status();
}

trek_status trek_run_save_begin(trek_run *run)
{
    if (!writes(run) || run->writer)
        return TREK_OK;
    trek_status status = make_folder(run->opts.checkpoint_folder);
    if (status == TREK_OK && !(run->writer = trek_run_writer_new(write_snapshot, remove_old, &run->opts)))
        status = trek_error_status();
    return status;
}

trek_status trek_run_save(trek_run *run, const trek_epoch_metrics *m, bool due)
{
    const trek_run_opts *o = &run->opts;
    bool step = due, best = m->best && o->keep_best;
    trek_step *s = trek_graph_ranks(run->graph);
    trek_status status = trek_run_save_begin(run); /* this process may have become the first one */
    if (status == TREK_OK && run->writer)
        status = hear(run);
    if (o->checkpoint_folder && (step || best) && status == TREK_OK)
        status = trek_twice_check(s, "trainer_run");
    if (o->checkpoint_folder && (step || best)) /* all processes gather what one writes */
        status = trek_ranks_gather_state(s, status, false);
    if (run->writer && status == TREK_OK && (step || best))
        status = give_snapshot(run, m->epoch, step, best);
    trek_ranks_forget_state(s);
    return status;
}

trek_status trek_run_save_end(trek_run *run, trek_status status)
{
    if (!run->writer)
        return status;
    say(run, "save");
    trek_run_writer_finish(run->writer);
    say(run, NULL);
    if (status == TREK_OK)
        status = hear(run);
    else
        trek_run_writer_tidy(run->writer, INT64_MAX); /* the program will not be informed of them */
    trek_run_writer_free(&run->writer);
    return status;
}

/* Returns whether two names of a folder are equal, except for a slash at the end. */
static bool same_folder(const char *a, const char *b)
{
    size_t n = strlen(a), m = b ? strlen(b) : 0;
    while (n > 1 && a[n - 1] == '/')
        n--;
    while (m > 1 && b[m - 1] == '/')
        m--;
    return n == m && memcmp(a, b, n) == 0;
}

/* Returns the file to resume from as a new string; "": there is none yet. */
static char *file_to_resume(const char *from, const char *own)
{
    struct stat there;
    if (stat(from, &there) != 0 && errno == ENOENT) {
        if (same_folder(from, own))
            return trek_calloc(1, 1);
        return trek_fail_null(TREK_ERR_IO, "trainer_run: .resume_from: %s does not exist; only .checkpoint_folder may be missing",
                              from);
    }
    if (stat(from, &there) == 0 && !S_ISDIR(there.st_mode))
        return trek_strdup(from);
    int n;
    int64_t *steps = list_steps(from, &n);
    char *path = n > 0 ? path_of_step(from, steps[0]) : trek_calloc(1, 1);
    trek_free(steps);
    return path;
}

trek_status trek_run_load_best(trek_module *model, const char *folder)
{
    if (!model || !folder)
        return trek_fail_missing("run_load_best", model ? "folder" : "model");
    struct stat there;
    char *path = path_of(folder, BEST);
    trek_status status = path ? TREK_OK : trek_error_status();
    if (path && stat(path, &there) != 0 && errno == ENOENT)
        status = trek_fail(TREK_ERR_IO, "run_load_best: %s does not exist; runs write it with .keep_best", path);
    if (status == TREK_OK)
        status = trek_state_load(model, path, NULL);
    trek_free(path);
    return status;
}

/* All processes must go on from the same step, although each looks in its own file system. */
static trek_status agree_on_file(const trek_run *run, const char *path, trek_status own)
{
    const trek_job *job = trek_graph_job(run->graph);
    const char *name = path ? strrchr(path, '/') : NULL;
    trek_text text = { 0 };
    if (trek_job_is_alone(job))
        return own;
    trek_text_format(&text, "the checkpoint to continue from\t%s\n", name ? name + 1 : path && *path ? path : "none");
    trek_status status = trek_agree(job->comm, own, "trainer_run: .resume_from", &text);
    trek_text_clear(&text);
    return status;
}

/* Notes the file from which the run was resumed; it is no longer needed once there is a later one. */
static void note_stopped(trek_run *run, const char *path)
{
    const char *name = strrchr(path, '/');
    int64_t step = step_of(name ? name + 1 : path);
    int64_t every = run->opts.checkpoint_every_steps;
    bool stopped = run->resumed && step > 0 && (every == 0 || step % every != 0);
    char *own = stopped && run->opts.checkpoint_folder ? path_of_step(run->opts.checkpoint_folder, step) : NULL;
    run->stopped_step = own && strcmp(own, path) == 0 ? step : 0;
    trek_free(own);
}

trek_status trek_run_resume(trek_run *run)
{
    double more[TREK_RUN_NUMBERS];
    bool found = false;
    int64_t batch;
    trek_state *read = NULL;
    if (!run->opts.resume_from)
        return TREK_OK;
    char *path = file_to_resume(run->opts.resume_from, run->opts.checkpoint_folder);
    trek_status status = agree_on_file(run, path, path ? TREK_OK : trek_error_status());
    if (status == TREK_OK && *path) {
        status = trek_checkpoint_load_more(run->graph, run->train, path, more, TREK_RUN_NUMBERS, &found, &read);
        trek_loader_position(run->train, &run->first_epoch, &batch);
        int64_t batches = trek_loader_batches(run->train);
        run->resumed = batches < 0 ? batch > 0 : batch < batches;
        run->first_epoch += !run->resumed && batches >= 0;
        if (status == TREK_OK)
            status = trek_run_take_rest(run, read);
        trek_state_free(&read);
        note_stopped(run, path);
    }
    if (status == TREK_OK && found) {
        run->best = more[TREK_RUN_BEST];
        run->since_best = (int64_t)more[TREK_RUN_SINCE_BEST];
    }
    trek_free(path);
    return status;
}

char *trek_run_checkpoint_before(const char *folder, int64_t step)
{
    int n;
    int64_t *steps = list_steps(folder, &n), last = -1;
    for (int k = n; k > 0; k--) /* ascending */
        last = steps[k - 1] < step ? steps[k - 1] : last;
    trek_free(steps);
    return last >= 0 ? path_of_step(folder, last) : NULL;
}

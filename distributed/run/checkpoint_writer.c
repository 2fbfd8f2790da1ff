/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that a thread of their own writes. */
#include <string.h>

#include "distributed/checkpoint_internal.h"
#include "distributed/checkpoint_set.h"
#include "distributed/reduce/sharded.h"
#include "distributed/run/writer.h"
#include "distributed/stepper.h"
#include "nn/state_modules.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

struct trek_checkpoint_writer {
    run_writer *thread;       /* NULL: not started, or ended by a failure that was reported */
};

static trek_status write_file(const run_snapshot *snapshot, void *arg)
{
    (void)arg;
    return trek_state_write(snapshot->state, snapshot->step);
}

static void nothing(int64_t step, void *arg) { (void)step, (void)arg; }

trek_checkpoint_writer *trek_checkpoint_writer_new(void) { return trek_calloc(1, sizeof(trek_checkpoint_writer)); }

void trek_checkpoint_writer_free(trek_checkpoint_writer **writer)
{
    if (!writer || !*writer)
        return;
    trek_run_writer_free(&(*writer)->thread);
    trek_free(*writer);
    *writer = NULL;
}

/* Ends the thread after it has written what it was given. A failure is reported once; the next save starts a new
 * thread. */
static trek_status finish(trek_checkpoint_writer *writer)
{
    if (trek_forked)
        return trek_fail_forked();
    if (!writer->thread)
        return TREK_OK;
    trek_run_writer_finish(writer->thread);
    for (run_snapshot *next, *s = trek_run_writer_take(writer->thread); s; s = next) {
        next = s->next;
        trek_run_snapshot_free(s);
    }
    trek_status status = trek_run_writer_status(writer->thread);
    if (status != TREK_OK)
        trek_run_writer_free(&writer->thread);
    return status;
}

trek_status trek_checkpoint_writer_wait(trek_checkpoint_writer *writer)
{
    return writer ? finish(writer) : trek_fail_missing("checkpoint_writer_wait", "writer");
}

static trek_status give(trek_checkpoint_writer *writer, trek_graph *graph, trek_loader *loader, const char *path)
{
    if (!writer->thread)
        writer->thread = trek_run_writer_new(write_file, nothing, NULL);
    run_snapshot *snapshot = writer->thread ? trek_run_snapshot_new(0) : NULL;
    if (snapshot)
        snapshot->step = trek_strdup(path);
    if (snapshot && snapshot->step)
        snapshot->state = trek_checkpoint_snapshot(graph, loader, NULL, 0);
    if (!snapshot || !snapshot->state) {
        trek_run_snapshot_free(snapshot);
        return trek_error_status();
    }
    trek_run_writer_give(writer->thread, snapshot);
    return TREK_OK;
}

trek_status trek_checkpoint_writer_save(trek_checkpoint_writer *writer, trek_graph *graph, trek_loader *loader, const char *path)
{
    if (!writer || !graph || !path)
        return trek_fail_missing("checkpoint_writer_save", !writer ? "writer" : !graph ? "graph" : "path");
    trek_step *s = trek_graph_ranks(graph);
    const trek_job *job = trek_graph_job(graph);
    trek_comm *comm = job->comm;
    trek_status status = trek_error_status();
    if (status == TREK_OK && trek_checkpoint_is_set(path))
        status = trek_fail(TREK_ERR_UNSUPPORTED,
                           "checkpoint_writer_save: path: %s; must be a file (trek_checkpoint_save writes sets)", path);
    trek_comm_say(comm, "save");
    if (status == TREK_OK && job->process == 0)
        status = finish(writer);
    status = trek_ranks_gather_state(s, status, false);
    if (status == TREK_OK && job->process == 0)
        status = give(writer, graph, loader, path);
    trek_ranks_forget_state(s);
    status = trek_replica_agree(comm, status, "checkpoint_writer_save");
    trek_comm_say(comm, NULL);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of a communicator's ranks. All ranks announce their colours and keys. Then each group is made by its own
 * ranks: threads are joined by the first of them, processes join as the processes of a job do, around the first of
 * them. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "distributed/comm/init_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"

/* A rank may be delayed between two steps, so making a group waits at least this long, even if the deadline is shorter. */
#define LEAST_JOIN_S 5

/* What each rank announces to the others. */
typedef struct wish {
    int32_t color, key;
    trek_device device;
} wish;

/* What the calling rank knows of its group. */
typedef struct part {
    trek_comm *parent;
    wish *wishes; /* [world of the parent] */
    int *members; /* [n] ranks in the parent, in the group's order */
    int rank, n;
} part;

/* --- who is in which group ----------------------------------------------------------------------------------------- */

static bool is_before(const part *p, int a, int b)
{
    return p->wishes[a].key != p->wishes[b].key ? p->wishes[a].key < p->wishes[b].key : a < b;
}

/* The position of each member is the number of members before it. */
static void find_members(part *p)
{
    int world = p->parent->world, own = p->wishes[p->parent->rank].color;
    for (int r = 0; r < world; r++) {
        int place = 0;
        if (p->wishes[r].color != own)
            continue;
        for (int q = 0; q < world; q++)
            place += p->wishes[q].color == own && is_before(p, q, r);
        p->members[place] = r;
        p->n++;
        if (r == p->parent->rank)
            p->rank = place;
    }
}

static bool uses_gpu(const part *p)
{
    for (int r = 0; r < p->n; r++)
        if (p->wishes[p->members[r]].device.type != TREK_CPU)
            return true;
    return false;
}

/* --- ranks that are threads ------------------------------------------------------------------------------------------ */

/* All handles of a group, made by its first rank. The last rank that takes its handle frees the list. */
typedef struct handles {
    atomic_int left;
    trek_comm *comms[];
} handles;

static handles *make_handles(const part *p)
{
    handles *list = trek_calloc(1, sizeof *list + (size_t)p->n * sizeof *list->comms);
    trek_device *devices = trek_calloc((size_t)p->n, sizeof *devices);
    trek_status status = list && devices ? TREK_OK : trek_error_status();
    for (int r = 0; r < p->n && status == TREK_OK; r++)
        devices[r] = p->wishes[p->members[r]].device;
    if (status == TREK_OK)
        status = trek_comm_local(devices, p->n, list->comms);
    trek_free(devices);
    if (status == TREK_OK) {
        atomic_init(&list->left, p->n);
        trek_comm_local_set_spin(list->comms[0], p->parent->world <= trek_cores());
        return list;
    }
    trek_free(list);
    return NULL;
}

static trek_comm *take_handle(handles *list, int rank)
{
    trek_comm *comm = list->comms[rank];
    if (atomic_fetch_sub(&list->left, 1) == 1)
        trek_free(list);
    return comm;
}

/* Frees the list. Either the ranks have met, or none has; in both cases nobody else uses it. */
static void drop_handles(handles *list, int n)
{
    for (int r = 0; list && r < n; r++)
        trek_comm_free(&list->comms[r]);
    trek_free(list);
}

/* Every rank must come to the second meeting, including ranks without a group. */
static trek_comm *split_threads(const part *p, bool has_color)
{
    handles *own = has_color && p->rank == 0 ? make_handles(p) : NULL;
    handles **all = trek_calloc((size_t)p->parent->world, sizeof(handles *));
    trek_comm *comm = NULL;
    if (!all) {
        trek_comm_abort(p->parent, "a rank has no memory for the handles of a group");
        drop_handles(own, p->n);
        return NULL;
    }
    trek_status status = trek_comm_gather_bytes(p->parent, &own, sizeof(handles *), all);
    if (status != TREK_OK)
        drop_handles(own, p->n);
    else if (has_color && all[p->members[0]])
        comm = take_handle(all[p->members[0]], p->rank);
    else if (has_color && p->rank > 0)
        trek_fail(TREK_ERR_PEER, "comm_split: rank %d could not make the group", p->members[0]);
    trek_free(all);
    return comm;
}

/* --- ranks that are processes ---------------------------------------------------------------------------------------- */

/* Where the first process of a group listens. */
typedef struct place {
    char address[64];
    int32_t port, status;
} place;

/* fd -1: it does not listen. */
static trek_status listen_here(trek_comm *parent, place *own, int *fd)
{
    int port = 0;
    if (!trek_control_own_address(parent->control, own->address, sizeof own->address))
        return trek_control_ended(parent->control)
                   ? trek_control_fail(parent->control)
                   : trek_fail(TREK_ERR_COMM, "comm_split: the control connection of rank %d is lost", parent->rank);
    trek_status status = trek_socket_listen(own->address, 0, fd, &port);
    own->port = port;
    return status;
}

static double join_seconds(const trek_comm *parent)
{
    double seconds = (double)parent->deadline_ns * 1e-9;
    return seconds <= 0 ? TREK_OFF : seconds < LEAST_JOIN_S ? LEAST_JOIN_S : seconds;
}

/* Runs when the last handle of a group of processes is freed, and frees the channel. */
static void free_group(trek_comm *comm)
{
    if (trek_forked)
        return;
    trek_control *control = comm->control;
    trek_comm_destroy(comm);
    trek_control_free(&control);
}

/* Joins the group, and owns fd. Processes of one machine keep their engine; others may find a better one for
 * themselves. */
static trek_comm *join_group(const part *p, const place *first, int fd)
{
    trek_control_opts opts = trek_control_like(p->parent->control);
    opts.process = p->rank;
    opts.processes = p->n;
    opts.address = first->address;
    opts.port = first->port;
    opts.listening = fd + 1;
    opts.join_s = join_seconds(p->parent);
    trek_control *control = trek_control_join(&opts);
    bool near = trek_control_same_machine(p->parent->control);
    trek_comm *comm = control ? trek_comm_init_part(control, near ? p->parent->engine->name : NULL) : NULL;
    if (comm)
        comm->freed = free_group;
    else
        trek_control_free(&control);
    return comm;
}

static trek_comm *join_processes(const part *p, const place *first, int fd)
{
    trek_comm *comm = NULL;
    if (p->n == 1) {
        trek_socket_close(fd);
        trek_comm_local(&p->wishes[p->parent->rank].device, 1, &comm);
        return comm;
    }
    comm = join_group(p, first, fd);
    if (comm && uses_gpu(p)) {
        comm->deadline_ns = p->parent->deadline_ns;
        if (trek_comm_nccl_join(comm, p->wishes[p->parent->rank].device) != TREK_OK)
            trek_comm_free(&comm);
    }
    return comm;
}

static trek_comm *split_processes(const part *p, bool has_color)
{
    trek_comm *parent = p->parent, *comm = NULL;
    place own = { .port = 0 }, *all = trek_calloc((size_t)parent->world, sizeof *all);
    int fd = -1;
    trek_status failed = has_color && p->rank == 0 && p->n > 1 ? listen_here(parent, &own, &fd) : TREK_OK;
    own.status = (int32_t)failed;
    if (!all) {
        trek_comm_abort(parent, "a process is out of memory for the positions of groups");
        trek_socket_close(fd);
        return NULL;
    }
    trek_status status = trek_comm_gather_bytes(parent, &own, sizeof own, all);
    const place *first = has_color ? &all[p->members[0]] : NULL;
    if (first && status == TREK_OK && failed == TREK_OK && first->status != TREK_OK)
        failed = trek_fail(TREK_ERR_PEER, "comm_split: rank %d cannot listen for the others of the group: %s", p->members[0],
                           trek_status_description((trek_status)first->status));
    if (first && status == TREK_OK && failed == TREK_OK)
        comm = join_processes(p, first, fd);
    else
        trek_socket_close(fd);
    trek_free(all);
    return comm;
}

/* --- splitting --------------------------------------------------------------------------------------------------------- */

/* Notes the ranks in the first communicator, however often it was split. */
static trek_status note_origins(const part *p, trek_comm *comm)
{
    comm->origins = trek_calloc((size_t)p->n, sizeof *comm->origins);
    for (int r = 0; comm->origins && r < p->n; r++)
        comm->origins[r] = p->parent->origins ? p->parent->origins[p->members[r]] : p->members[r];
    return comm->origins ? TREK_OK : trek_error_status();
}

static trek_comm *split(const part *p)
{
    bool has_color = p->wishes[p->parent->rank].color >= 0;
    trek_comm *comm = p->parent->control ? split_processes(p, has_color) : split_threads(p, has_color);
    if (!comm)
        return NULL;
    comm->deadline_ns = p->parent->deadline_ns;
    if (note_origins(p, comm) != TREK_OK)
        trek_comm_free(&comm);
    return comm;
}

/* Returns whether the communicator can be split; the answer is the same on all ranks. A communicator of one rank has
 * no particular engine. */
static bool can_split(const trek_comm *comm) { return comm->control || strcmp(comm->engine->name, TREK_COMM_LOCAL_ENGINE) == 0; }

trek_comm *trek_comm_split(trek_comm *parent, int color, int key)
{
    if (!parent)
        return trek_fail_missing("comm_split", "communicator"), NULL;
    if (!can_split(parent))
        return trek_fail_null(TREK_ERR_UNSUPPORTED,
                              "comm_split: the ranks are joined by \"%s\" without a control channel, which a split needs",
                              parent->engine->name);
    part p = { .parent = parent };
    wish own = { .color = color < 0 ? TREK_NO_COLOR : color, .key = key, .device = parent->device };
    p.wishes = trek_calloc((size_t)parent->world, sizeof *p.wishes);
    p.members = trek_calloc((size_t)parent->world, sizeof *p.members);
    trek_comm *comm = NULL;
    if (!p.wishes || !p.members) {
        trek_comm_abort(parent, "a rank has no memory for the colours of all"); /* the others wait for this rank's wish */
    } else if (trek_comm_gather_bytes(parent, &own, sizeof own, p.wishes) == TREK_OK) {
        find_members(&p);
        comm = split(&p);
    }
    trek_free(p.wishes);
    trek_free(p.members);
    return comm;
}

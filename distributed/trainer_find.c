/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks a trainer has: the other processes of the job, and the devices of this one. */
#include "distributed/trainer_setup.h"

#include <string.h>

#include "distributed/comm/init_internal.h"
#include "distributed/job/survival.h"
#include "distributed/team/replica.h"
#include "graph/graph_internal.h"
#include "tensor/backend.h"
#include "tensor/environment.h"
#include "tensor/try_internal.h"

trek_device trek_trainer_device_of(trek_graph *graph, trek_device fallback)
{
    trek_replica_device(trek_graph_module(graph), &fallback);
    return fallback;
}

static trek_status parse_devices(trainer_setup *s, const char *list)
{
    s->local_ranks = 0;
    for (const char *at = list;; at++) {
        size_t size = strcspn(at, ",");
        char text[32];
        if (size == 0 || size >= sizeof text)
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: TREK_DEVICES=%s: entry %d is not a device such as cpu:1", list,
                             s->local_ranks);
        memcpy(text, at, size);
        text[size] = 0;
        if (s->local_ranks == TREK_MAX_RANKS)
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: TREK_DEVICES: more than %d devices", TREK_MAX_RANKS);
        trek_status status = trek_device_parse(text, &s->devices[s->local_ranks]);
        if (status != TREK_OK)
            return status;
        s->local_ranks++;
        at += size;
        if (!*at)
            return TREK_OK;
    }
}

/* Finds the other processes of the job. */
static trek_status find_processes(trainer_setup *s)
{
    int described = s->opts.comm ? trek_comm_world_size(s->opts.comm) : trek_comm_world_described(NULL);
    if (described < 0)
        return trek_error_status();
    s->processes = described;
    if (described == 1 && !(s->opts.min_processes > 0 && trek_trainer_regroup(s))) /* a run that is alone by now can be joined */
        return TREK_OK;
    s->joins = !s->opts.comm && s->opts.min_processes > 0 && !trek_trainer_regroup(s) &&
        trek_comm_init_joins();
    if (s->joins)
        return TREK_OK;
    const trek_survival *survival = trek_survival_of(s->opts.comm); /* whose group may be another one by now */
    trek_comm *given = survival ? survival->group : s->opts.comm;
    if (given && trek_comm_retain(given))
        s->comm = given;
    else
        s->comm = trek_comm_init(&(trek_comm_opts){ .deadline_s = s->opts.deadline_s });
    if (!s->comm)
        return trek_error_status();
    bool own = !s->opts.comm || s->opts.deadline_s != 0; /* the program's communicator already has a deadline */
    return own ? trek_comm_set_deadline(s->comm, s->opts.deadline_s) : TREK_OK;
}

/* Of several processes with several GPUs each, local process k uses those from k * ranks on; its graph is on the
 * first of them. */
static trek_status find_gpus_of_process(trainer_setup *s, trek_device own, int gpus)
{
    int first = trek_environment_local_rank() * s->local_ranks;
    if (own.index % s->local_ranks != 0 || own.index + s->local_ranks > gpus)
        return trek_fail(TREK_ERR_DEVICE,
                         "trainer_setup: graph: with %d ranks in each process that of local process %d must be built on cuda:%d, "
                         "not on cuda:%d, of %d usable GPUs; or .devices names the devices",
                         s->local_ranks, first / s->local_ranks, first, own.index, gpus);
    for (int r = 1; r < s->local_ranks; r++)
        s->devices[r] = trek_cuda(own.index + r);
    return TREK_OK;
}

/* Finds as many GPUs as ranks were requested, otherwise all if replicas can be made. The graph's own comes first. */
static trek_status find_gpus(trainer_setup *s, trek_device own)
{
    int gpus = trek_device_count(TREK_CUDA);
    if (s->opts.ranks == 0 && s->comm) /* each process of a machine has its own GPU: the graph is on it */
        s->local_ranks = 1;
    else if (s->opts.ranks == 0)
        s->local_ranks = s->opts.build_replica && gpus > 1 ? gpus : 1;
    if (s->local_ranks > gpus)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .ranks: %d, but there are %d usable GPU%s; .devices can list the same one twice",
                         s->local_ranks, gpus, gpus == 1 ? "" : "s");
    if (s->comm && s->local_ranks > 1)
        return find_gpus_of_process(s, own, gpus);
    for (int r = 1, next = 0; r < s->local_ranks; r++, next++) {
        next += next == own.index;
        s->devices[r] = trek_cuda(next);
    }
    return TREK_OK;
}

static trek_status find_devices(trainer_setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    trek_device own = trek_trainer_device_of(s->graph, trek_device_resolve(o->devices &&
                                                                 o->ranks > 0 ? o->devices[0] : (trek_device){ 0 }));
    const char *listed = trek_process_variable("TREK_DEVICES");
    if (o->ranks < 0 || o->ranks > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .ranks: %d; must be 1 to %d (0: not stated)", o->ranks,
                         TREK_MAX_RANKS);
    if (o->devices && o->ranks == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .devices: set, but .ranks does not say how many there are");
    s->local_ranks = o->ranks > 0 ? o->ranks : 1;
    s->devices[0] = own;
    for (int r = 0; o->devices && r < s->local_ranks; r++)
        s->devices[r] = trek_device_resolve(o->devices[r]);
    if (o->devices)
        return TREK_OK;
    if (o->ranks == 0 && listed && *listed)
        return parse_devices(s, listed);
    if (own.type == TREK_CUDA)
        return find_gpus(s, own);
    for (int r = 1; r < s->local_ranks; r++)
        s->devices[r] = trek_cpu(r);
    return TREK_OK;
}

static trek_status check_devices(trainer_setup *s)
{
    char a[16], b[16];
    trek_device own = trek_trainer_device_of(s->graph, s->devices[0]);
    if (!trek_device_equal(own, s->devices[0]))
        return trek_fail(TREK_ERR_DEVICE, "trainer_setup: graph: it is on %s, but rank 0's device is %s; they must be the same",
                         trek_device_name(own, a, sizeof a),
                         trek_device_name(s->devices[0], b, sizeof b));
    for (int r = 0; r < s->local_ranks && s->local_ranks > 1; r++)
        if (s->devices[r].index < 0)
            return trek_fail(TREK_ERR_DEVICE, "trainer_setup: .devices: that of rank %d has index %d; must be 0 or more", r,
                             s->devices[r].index);
    return TREK_OK;
}

int trek_trainer_count_cpus(const trainer_setup *s)
{
    int n = 0;
    for (int r = 0; r < s->local_ranks; r++)
        n += s->devices[r].type == TREK_CPU;
    return n;
}

trek_status trek_trainer_find_ranks(trainer_setup *s)
{
    TRY(find_processes(s));
    TRY(find_devices(s));
    return check_devices(s);
}

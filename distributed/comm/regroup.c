/* SPDX-License-Identifier: Apache-2.0 */
/* A new group of those who are left: found by their doors, joined as the first one was. */
#include "distributed/comm/regroup.h"

#include <stdio.h>
#include <string.h>

#include "distributed/comm/init_internal.h"
#include "distributed/control/door.h"
#include "tensor/memory_internal.h"

/* Those who are to come have been found alive: how long they may take. */
#define JOIN_S 30

struct trek_regroup {
    trek_door *door;
    char token[256], lost[256];
    int flat;
    int n;                   /* of the group that the door has entered */
    trek_member members[TREK_MAX_RANKS];
};

void trek_regroup_free(trek_regroup **place)
{
    trek_regroup *regroup = place ? *place : NULL;
    if (!regroup)
        return;
    *place = NULL;
    trek_door_free(&regroup->door);
    trek_free(regroup);
}

const char *trek_regroup_lost(const trek_regroup *regroup) { return regroup->lost; }

/* --- beginning --------------------------------------------------------------------------------------------------- */

static trek_status check_engine(const trek_comm *comm)
{
    if (!comm || !comm->control)
        return trek_fail(TREK_ERR_ARGUMENT, "only the processes of a job can go on without one of them");
    if (strcmp(comm->engine->name, "mpi") == 0)
        return trek_fail(TREK_ERR_UNSUPPORTED, "a job cannot go on without one of its processes over MPI, which ends with it: "
                                               "start it without mpirun, or choose engine \"shared\" or \"gloo\"");
    return TREK_OK;
}

/* The door, where the others reach this process. */
static trek_status open_door(trek_regroup *regroup, const trek_comm *comm)
{
    char address[64];
    const trek_control_opts like = trek_control_like(comm->control);
    snprintf(regroup->token, sizeof regroup->token, "%s", like.token);
    regroup->flat = like.flat;
    if (!trek_control_own_address(comm->control, address, sizeof address))
        return trek_fail(TREK_ERR_COMM, "the control connection of process %d is lost", comm->rank);
    regroup->door = trek_door_open(address, regroup->token, comm->rank);
    return regroup->door ? TREK_OK : trek_error_status();
}

static trek_status enter(trek_regroup *regroup, int64_t generation, int n)
{
    regroup->n = n;
    return trek_door_enter(regroup->door, generation, regroup->members, n);
}

/* One that has none says so by a port of 0. */
static trek_status begin(trek_regroup *regroup, trek_comm *comm)
{
    trek_status own = open_door(regroup, comm);
    trek_member member = own == TREK_OK ? trek_door_member(regroup->door) : (trek_member){ .port = 0 };
    trek_status status = trek_comm_gather_bytes(comm, &member, sizeof member, regroup->members);
    for (int p = 0; p < comm->world && status == TREK_OK && own == TREK_OK; p++)
        if (regroup->members[p].port == 0)
            status = trek_fail(TREK_ERR_PEER, "process %d has no door by which the others would find it", p);
    if (status == TREK_OK && own == TREK_OK)
        own = enter(regroup, 0, comm->world);
    return own != TREK_OK ? own : status;
}

trek_regroup *trek_regroup_new(trek_comm *comm)
{
    if (check_engine(comm) != TREK_OK)
        return NULL;
    trek_regroup *regroup = trek_calloc(1, sizeof *regroup);
    if (!regroup) {
        trek_comm_abort(comm, "a process has no memory for its door"); /* the others wait for its place */
        return NULL;
    }
    if (begin(regroup, comm) != TREK_OK)
        trek_regroup_free(&regroup);
    return regroup;
}

/* --- the next group ------------------------------------------------------------------------------------------------- */

bool trek_regroup_may(const trek_comm *comm)
{
    if (!comm || !comm->control || !trek_comm_ended(comm) || !trek_control_ended(comm->control))
        return false;
    trek_status kept, why;
    char message[TREK_ERROR_SIZE], reason[TREK_ERROR_SIZE];
    trek_error_take(&kept, message);
    trek_error_clear();
    trek_control_fail(comm->control);
    trek_error_take(&why, reason);
    trek_error_clear();
    if (kept != TREK_OK)
        trek_fail(kept, "%s", message);
    return why == TREK_ERR_PEER || why == TREK_ERR_TIMEOUT;
}

static trek_control *join(trek_regroup *regroup, const trek_door_place *place)
{
    return trek_control_join(&(trek_control_opts){ .process = place->process, .processes = place->processes,
                                                   .address = place->address, .port = place->port, .token = regroup->token,
                                                   .join_s = JOIN_S, .flat = regroup->flat, .generation = place->generation,
                                                   .listening = place->listening, .died = trek_door_died,
                                                   .arg = regroup->door });
}

/* Who was in the old group and is not in the new one. */
static void list_lost(trek_regroup *regroup, const trek_member *members, int n)
{
    size_t used = 0;
    regroup->lost[0] = '\0';
    for (int k = 0, at = 0; k < regroup->n; k++) {
        if (at < n && members[at].number == regroup->members[k].number)
            at++;
        else if (used + 16 < sizeof regroup->lost)
            used += (size_t)snprintf(regroup->lost + used, sizeof regroup->lost - used, "%s%d", used ? ", " : "",
                                     regroup->members[k].number);
    }
}

/* All have joined: they tell each other who they are, and the group stands. */
static trek_status settle(trek_regroup *regroup, trek_control *control, const trek_door_place *place)
{
    trek_member own = trek_door_member(regroup->door), *members = trek_calloc((size_t)place->processes, sizeof own);
    trek_status status = members ? TREK_OK : TREK_ERR_MEMORY;
    if (!members && control)
        trek_control_end(control, TREK_ERR_MEMORY, "a process has no memory for the list of those who are left");
    if (status == TREK_OK && control)
        status = trek_control_gather(control, &own, sizeof own, members, (int64_t)JOIN_S * 1000000000);
    else if (status == TREK_OK)
        members[0] = own;
    trek_door_settled(regroup->door);
    if (status == TREK_OK) {
        list_lost(regroup, members, place->processes);
        memcpy(regroup->members, members, (size_t)place->processes * sizeof own);
        status = enter(regroup, place->generation, place->processes);
    }
    trek_free(members);
    return status;
}

/* *again: somebody has died meanwhile. */
static trek_comm *form(trek_regroup *regroup, const trek_comm *ended, const trek_door_place *place, bool *again)
{
    trek_control *control = place->processes > 1 ? join(regroup, place) : NULL;
    if (place->processes > 1 && !control) {
        trek_door_settled(regroup->door);
        *again = trek_error_status() != TREK_ERR_MEMORY && trek_error_status() != TREK_ERR_STATE;
        return NULL;
    }
    trek_status status = settle(regroup, control, place);
    if (status != TREK_OK) {
        *again = status == TREK_ERR_PEER || status == TREK_ERR_TIMEOUT;
        trek_control_free(&control);
        return NULL;
    }
    trek_comm *comm = trek_comm_init_next(control, ended);
    *again = !comm && (trek_error_status() == TREK_ERR_PEER || trek_error_status() == TREK_ERR_TIMEOUT);
    return comm;
}

trek_comm *trek_regroup_meet(trek_regroup *regroup, const trek_comm *ended, int least)
{
    trek_door_place place;
    trek_comm *comm = NULL;
    bool again = true;
    for (int round = trek_door_members(regroup->door); again && round >= 0; round--) { /* each but the last loses one */
        trek_error_clear();
        again = false;
        if (trek_door_meet(regroup->door, least, ended->deadline_ns, &place) == TREK_OK)
            comm = form(regroup, ended, &place, &again);
    }
    return comm;
}

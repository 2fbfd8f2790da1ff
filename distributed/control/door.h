/* SPDX-License-Identifier: Apache-2.0 */
/* The door of a process: a second socket by which the processes of a job find each other again when a group has ended because
 * one of them died. A thread of its own serves it for as long as the process may be looked for: it says that the process is
 * alive, whatever that computes, and holds those who have come until it has come itself. The group that has ended is left as it
 * is; what is found here is the place of a new one. Internal.
 *
 * Of those who were in the group the one with the lowest number that is alive is its host: each tries the doors of those below it
 * in turn; who closes a connection, refuses one, or is silent for 5 s, is dead. The host waits for all who answer, and turns
 * to the others when those who are missing do not. A process whom the others have gone on without is told so. Where the
 * network falls in two, each part may go on: only a least number of more than half of the processes rules that out.
 *
 * One process of the group, if any can, also listens at the job's address and port: there a process that was started again asks
 * to be let in (newcomer.c), and waits (lobby.c) until the group invites it: then it comes to the next meeting as one more, after
 * all who were there before it. Members stand in the order in which they came to be in the job: whoever hosts has been there
 * longest. */
#ifndef TREK_DISTRIBUTED_CONTROL_DOOR_H
#define TREK_DISTRIBUTED_CONTROL_DOOR_H

#include "distributed/control/control.h"

typedef struct trek_door trek_door;

/* What others know of a process. */
typedef struct trek_member {
    int32_t number;          /* of the process in the job, for ever */
    int32_t port;
    char address[64];        /* a number */
} trek_member;

/* Opens it at that address, which is this machine's. token: the job's. NULL and COMM, MEMORY, STATE (no thread). */
trek_door *trek_door_open(const char *address, const char *token, int number);
void trek_door_free(trek_door **door);
trek_member trek_door_member(const trek_door *door);
/* This process is in a group of these n now, itself among them; in rank order. Copied. MEMORY. */
trek_status trek_door_enter(trek_door *door, int64_t generation, const trek_member *members, int n);
int trek_door_members(const trek_door *door);
int64_t trek_door_generation(const trek_door *door);

/* Where the next group comes together: for trek_control_join. */
typedef struct trek_door_place {
    int process, processes;
    int64_t generation;
    char address[64];
    int port;
    int listening;           /* on process 0 the socket that listens there, plus 1; else 0. The caller's */
} trek_door_place;
/* The group that was entered has ended: finds who is left of it. least: so many are needed. settle_ns: how long those who are
 * alive are waited for; 0: for ever. PEER: too few are left, or the others have gone on without this process, or may have: those
 * who are left have all stood still (stopped, suspended), and were taken for dead for all that they know; TIMEOUT, COMM, MEMORY.
 * Until trek_door_settled those who are to come know whether the others are still there. */
trek_status trek_door_meet(trek_door *door, int least, int64_t settle_ns, trek_door_place *place);
/* Whether one of those died who were to come to the place: for .died of trek_control_opts, arg being the door. */
bool trek_door_died(void *door, char *text, size_t size);
/* They have come, or will not. */
void trek_door_settled(trek_door *door);

/* -- joining a group that is there -- */

/* Listens for newcomers at the job's address, too; `listening`: a socket that does, plus 1, which is taken over, or 0. program:
 * of what they are to run. world: of the job's processes, as it began. COMM: it cannot. */
trek_status trek_door_admit(trek_door *door, const char *address, int port, int listening, uint64_t program, int world);
bool trek_door_admits(trek_door *door);
/* Those who wait and are not in the group: at most `most` of them, by number. */
int trek_door_waiting(trek_door *door, trek_member *newcomers, int most);
/* All members have met, and know that these n come to the next group, if they live. Who waited through two such meetings under
 * the number of a member is told that this one is alive. MEMORY. */
trek_status trek_door_invite(trek_door *door, const trek_member *newcomers, int n);
/* What a newcomer says, and to whom. Strings are the caller's. */
typedef struct trek_door_call {
    const char *address, *token; /* the job's */
    int port, number, world;
    uint64_t program;
    int64_t until_ns;        /* somebody is to be reached */
    bool (*over)(void *arg); /* whether nobody is left who could be; NULL: it is not known */
    void *arg;
} trek_door_call;

typedef enum trek_door_came {
    TREK_DOOR_CAME,
    TREK_DOOR_LEFT_ALONE, /* who let it wait, or was to host, has gone, or is not ready yet: it may try anew */
    TREK_DOOR_IGNORED /* who listens there closed the connection without a word: another program, or a job that has just ended */
} trek_door_came;

/* The newcomer: asks at the job's address, waits there, as long as the job is alive, until it is invited, and then meets the
 * others: the door that it came by. NULL without an error: *came says why. NULL and STATE: the job has ended, or its
 * process of this number is alive; ARGUMENT: it runs another program, or the job has another number of processes; TIMEOUT: nobody
 * listens there; COMM, MEMORY. */
trek_door *trek_door_join(const trek_door_call *call, trek_door_place *place, trek_door_came *came);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How a process that was started again, or a newcomer, comes to those who are at work. It asks and waits at the job's address,
 * and then goes to the rendezvous that it is sent to. */
#include <stdio.h>
#include <string.h>

#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* Writes "process 3", or "this process" if it has no number yet. */
static const char *name_of(const trek_rendezvous_call *call, char text[32])
{
    if (call->number < 0)
        return "this process";
    snprintf(text, 32, "process %d", call->number);
    return text;
}

static trek_status fail_over(const trek_rendezvous_call *call)
{
    char name[32];
    return trek_fail(TREK_ERR_STATE, "comm_init: the job has ended: %s came too late to join it", name_of(call, name));
}

static int connect_to_job(const trek_rendezvous_call *call)
{
    char why[256], where[TREK_WHERE];
    int fd = trek_socket_connect(call->address, call->port, call->until_ns, call->over, call->arg, why, sizeof why);
    if (fd < 0 && call->over && call->over(call->arg))
        fail_over(call);
    else if (fd < 0)
        trek_fail(TREK_ERR_TIMEOUT,
                  "comm_init: no process of the job accepts joining processes at %s: the job has ended, or none of the remaining "
                  "processes runs on the machine of that address: %s",
                  trek_socket_where(call->address, call->port, where, sizeof where), why);
    return fd;
}

static trek_rendezvous *open_rendezvous(const trek_rendezvous_call *call, int fd)
{
    char address[64];
    if (!trek_socket_own_address(fd, address, sizeof address)) {
        trek_fail(TREK_ERR_COMM, "comm_init: the connection to the job is lost");
        return NULL;
    }
    trek_rendezvous *rendezvous = trek_rendezvous_open(address, call->token, call->number);
    if (!rendezvous)
        return NULL;
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->joins = true;
    trek_lock_release(&rendezvous->lock);
    return rendezvous;
}

static trek_status fail_version(const trek_rendezvous_call *call, int version)
{
    char name[32];
    return trek_fail(TREK_ERR_ARGUMENT, "comm_init: %s has version %s of trek; the job that it was to join has %d.%d.%d",
                     name_of(call, name), trek_version(), version >> 16, version >> 8 & 255, version & 255);
}

static trek_status take_refusal(const trek_rendezvous_call *call, const trek_rendezvous_note *note)
{
    char text[32];
    const char *name = name_of(call, text);
    if (note->kind == TREK_RENDEZVOUS_OVER)
        return fail_over(call);
    if (note->kind == TREK_RENDEZVOUS_TAKEN)
        return trek_fail(
            TREK_ERR_STATE,
            "comm_init: process %d of the job is alive, or was started again; this one cannot take its rank",
            call->number);
    if (note->kind == TREK_RENDEZVOUS_OTHER_WORLD)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: process %d of %d cannot join the job, which has %d processes",
                         call->number, call->world, note->processes);
    if (note->kind == TREK_RENDEZVOUS_DIFFERS)
        return trek_fail(
            TREK_ERR_ARGUMENT,
            "comm_init: %s cannot join the job: its model, its options, its data or its instruction set is another one", name);
    if (note->kind == TREK_RENDEZVOUS_OTHER_VERSION)
        return fail_version(call, note->version);
    if (note->kind == TREK_RENDEZVOUS_FULL)
        return trek_fail(TREK_ERR_STATE, "comm_init: %s cannot join the job: it comes with %d ranks, and a job has at most %d",
                         name,
                         call->ranks, TREK_MAX_RANKS);
    if (note->kind == TREK_RENDEZVOUS_APART)
        return trek_fail(
            TREK_ERR_UNSUPPORTED,
            "comm_init: %s cannot join the job: it runs on another machine, and no engine joins that and the others; "
            "install Gloo on all (Debian: libgloo-dev g++) and build trek again",
            name);
    return trek_fail(TREK_ERR_COMM, "comm_init: %s was answered by a program that is not its job", name);
}

static trek_status fail_handshake(const trek_rendezvous_call *call, const trek_rendezvous_line *line)
{
    char why[TREK_WHERE + 128], where[TREK_WHERE], name[32];
    trek_socket_where(call->address, call->port, where, sizeof where);
    return trek_fail(TREK_ERR_COMM, "comm_init: %s was rejected by process %d at %s: %s%s", name_of(call, name),
                     line->seal.other.process, where, trek_seal_why(&line->seal, line->fault, where, why, sizeof why),
                     line->fault == TREK_SHAKE_SECRET ? " (TREK_TOKEN)" : "");
}

/* The others have given this process its number, and have said with how many the job began. */
static bool take_number(trek_rendezvous *rendezvous, const trek_rendezvous_call *call, const trek_rendezvous_note *note)
{
    if (note->processes < 1 || note->processes > TREK_MAX_RANKS || note->process < 0)
        return false;
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->world = note->processes;
    rendezvous->own.number = call->number < 0 ? note->process : call->number;
    trek_lock_release(&rendezvous->lock);
    return true;
}

/* Asks, waits, and goes to where it is sent. */
static trek_status ask(trek_rendezvous *rendezvous, const trek_rendezvous_call *call, trek_rendezvous_line *line,
                       trek_rendezvous_place *place,
                       trek_rendezvous_came *came)
{
    trek_rendezvous_note note = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_JOIN);
    bool heard = false, lost = false;
    note.port = rendezvous->own.port;
    note.program = call->program;
    note.processes = call->world;
    note.ranks = call->ranks;
    note.engines = call->engines;
    note.machine = call->machine;
    note.version = TREK_RENDEZVOUS_VERSION;
    memcpy(note.address, rendezvous->own.address, sizeof note.address);
    if (!trek_rendezvous_send(rendezvous, line, &note) || !trek_rendezvous_wait(rendezvous, line, NULL, 0, &note, &heard)) {
        if (line->fault == TREK_SHAKE_SECRET || line->fault == TREK_SHAKE_VERSION)
            return fail_handshake(call, line);
        bool ours = heard || trek_seal_is_open(&line->seal); /* the listener has proved that it belongs to the job */
        *came = ours ? TREK_RENDEZVOUS_LEFT_ALONE : TREK_RENDEZVOUS_IGNORED;
        return TREK_OK;
    }
    if (note.kind == TREK_RENDEZVOUS_LATER)
        return TREK_OK;
    if (note.kind != TREK_RENDEZVOUS_GO)
        return take_refusal(call, &note);
    if (!take_number(rendezvous, call, &note))
        return trek_fail(TREK_ERR_COMM, "comm_init: this process was answered by a program that is not its job");
    trek_member host = { .number = -1, .port = note.port };
    memcpy(host.address, note.address, sizeof host.address);
    trek_status status = trek_rendezvous_visit(rendezvous, &host, 0, place, &lost);
    *came = status == TREK_OK && !lost ? TREK_RENDEZVOUS_CAME : TREK_RENDEZVOUS_LEFT_ALONE;
    if (status == TREK_ERR_PEER) { /* the meeting took place without it */
        trek_error_clear();
        status = TREK_OK;
    }
    return status;
}

trek_rendezvous *trek_rendezvous_join(const trek_rendezvous_call *call, trek_rendezvous_place *place, trek_rendezvous_came *came)
{
    *came = TREK_RENDEZVOUS_LEFT_ALONE;
    if (trek_forked) {
        trek_fail_forked();
        return NULL;
    }
    trek_rendezvous_line line = { .fd = connect_to_job(call) };
    trek_rendezvous *rendezvous = line.fd >= 0 ? open_rendezvous(call, line.fd) : NULL;
    trek_status status = rendezvous ? ask(rendezvous, call, &line, place, came) : trek_error_status();
    trek_socket_close(line.fd);
    if (rendezvous && (status != TREK_OK || *came != TREK_RENDEZVOUS_CAME))
        trek_rendezvous_free(&rendezvous); /* processes that still look for it see that it has gone */
    return rendezvous;
}

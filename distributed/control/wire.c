/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the control channel: sealed, written in one piece, read as a whole. */
#include <errno.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "tensor/memory_internal.h"

void trek_control_wake(trek_control *control)
{
    if (control->bell >= 0 && !trek_bell_ring(control->bell))
        trek_log_message(TREK_LOG_LEVEL_DEBUG, "control: wake: %s", strerror(errno));
}

void trek_control_link_close(trek_control_link *link)
{
    if (link->fd < 0 && !link->in && !link->out)
        return;
    trek_socket_close(link->fd);
    trek_free(link->in);
    trek_free(link->out);
    *link = (trek_control_link){ .fd = -1, .process = link->process };
}

static bool has_room(char **buffer, size_t *size, size_t need)
{
    if (need <= *size)
        return true;
    size_t wanted = *size ? *size : 4096;
    while (wanted < need)
        wanted *= 2;
    char *grown = trek_realloc(*buffer, wanted);
    if (!grown)
        return false;
    *buffer = grown;
    *size = wanted;
    return true;
}

bool trek_control_is_full(const trek_control_link *link)
{
    return link->fd >= 0 && link->out_used > link->out_begin && trek_seal_is_open(&link->seal);
}

void trek_control_flush(trek_control_link *link)
{
    if (!trek_control_is_full(link))
        return;
    struct iovec part = { link->out + link->out_begin, link->out_used - link->out_begin };
    int64_t sent = trek_socket_send(link->fd, &part, 1);
    if (sent > 0)
        link->out_begin += (size_t)sent;
    if (sent < 0 || link->out_begin == link->out_used)
        link->out_begin = link->out_used = 0; /* the connection is broken; reading reports it */
}

void trek_control_send(trek_control *control, trek_control_link *link, trek_control_type type, uint64_t number, const void *data,
                       size_t bytes)
{
    bool open = trek_seal_is_open(&link->seal);
    if (link->fd < 0 || link->closing || (!open && !trek_seal_is_called(&link->seal)))
        return;
    trek_control_head head = { .magic = TREK_CONTROL_MAGIC, .number = number, .type = type, .bytes = (uint32_t)bytes };
    unsigned char code[TREK_SEAL_BYTES] = { 0 };
    struct iovec parts[3] = { { &head, sizeof head }, { (void *)(uintptr_t)data, bytes }, { code, sizeof code } };
    if (open)
        trek_seal_sign(&link->seal, parts, 2, code);
    int64_t sent = open && link->out_used == link->out_begin ? trek_socket_send(link->fd, parts, 3) : 0;
    size_t left = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
    if (sent < 0 || left == 0)
        return;
    if (!has_room(&link->out, &link->out_size, link->out_used + left)) {
        trek_error_clear();
        trek_control_end_locked(control, TREK_ERR_MEMORY, "the control channel has no memory for a message");
        return;
    }
    for (int i = 0; i < 3; i++) {
        if (parts[i].iov_len)
            memcpy(link->out + link->out_used, parts[i].iov_base, parts[i].iov_len);
        link->out_used += parts[i].iov_len;
    }
    trek_control_wake(control);
}

/* Seals what was queued before the seal was open. */
static void seal_waiting(trek_control_link *link)
{
    trek_control_head head;
    for (size_t at = link->out_begin; at < link->out_used; at += sizeof head + head.bytes + TREK_SEAL_BYTES) {
        memcpy(&head, link->out + at, sizeof head);
        struct iovec part = { link->out + at, sizeof head + head.bytes };
        trek_seal_sign(&link->seal, &part, 1, (unsigned char *)link->out + at + part.iov_len);
    }
}

trek_identity trek_control_identity(const trek_control *control, trek_role role)
{
    return (trek_identity){ .secret = &control->secret, .role = role, .process = control->process,
                            .generation = control->generation };
}

void trek_control_call_up(trek_control *control, trek_control_link *link)
{
    trek_identity own = trek_control_identity(control, TREK_ROLE_CHANNEL);
    if (!trek_seal_call(&link->seal, &own, link->fd))
        trek_control_end_locked(control, TREK_ERR_COMM,
                                "the system has no random numbers, which the control channel begins with");
}

trek_shake trek_control_shake(trek_control *control, trek_control_link *link)
{
    trek_identity own = trek_control_identity(control, TREK_ROLE_CHANNEL);
    size_t taken;
    if (trek_seal_is_open(&link->seal))
        return TREK_SHAKE_DONE;
    trek_shake how = trek_seal_shake(&link->seal, &own, link->fd, link->in, link->in_used, &taken);
    link->in_used -= taken;
    if (taken && link->in_used)
        memmove(link->in, link->in + taken, link->in_used);
    if (how == TREK_SHAKE_DONE) {
        seal_waiting(link);
        trek_control_flush(link);
    }
    return how;
}

/* Notes that the listener at an address of this job has not proved that it belongs to it. */
static void mistrust(trek_control *control, const trek_control_link *link, trek_shake how)
{
    char text[TREK_WHERE + 128], message[TREK_ERROR_SIZE], where[TREK_WHERE];
    const char *at = link == &control->up ? trek_socket_where(control->up_address, control->up_port, where, sizeof where)
        : control->where;
    snprintf(message, sizeof message, "process %d was rejected by process %d at %s: %s", control->process, link->process, at,
             trek_seal_why(&link->seal, how, at, text, sizeof text));
    trek_control_end_locked(control, TREK_ERR_COMM, message);
}

bool trek_control_has_proof(trek_control *control, trek_control_link *link)
{
    trek_shake how = trek_control_shake(control, link);
    if (how == TREK_SHAKE_VERSION || how == TREK_SHAKE_SECRET)
        mistrust(control, link, how);
    const trek_handshake_note *other = &link->seal.other;
    bool another = how == TREK_SHAKE_DONE && other->role == TREK_ROLE_CHANNEL && other->process != link->process;
    link->forged = how != TREK_SHAKE_DONE && how != TREK_SHAKE_MORE;
    link->forged |= another; /* a process of the job, but not the one that was called */
    return how == TREK_SHAKE_DONE && !another;
}

bool trek_control_receive(trek_control *control, trek_control_link *link)
{
    for (;;) {
        if (!has_room(&link->in, &link->in_size, link->in_used + 4096)) {
            trek_error_clear();
            trek_control_end_locked(control, TREK_ERR_MEMORY, "the control channel has no memory for a message");
            return true;
        }
        size_t room = link->in_size - link->in_used;
        int64_t got = trek_socket_receive(link->fd, link->in + link->in_used, room);
        if (got < 0) {
            link->error = errno;
            return false;
        }
        link->in_used += (size_t)got;
        if ((size_t)got < room || link->process < 0) /* from strangers no more than one handshake at a time */
            return true;
    }
}

bool trek_control_message(trek_control_link *link, trek_control_head *head, const char **data, bool *bad)
{
    uint64_t magic = TREK_CONTROL_MAGIC;
    size_t known = link->in_used < sizeof magic ? link->in_used : sizeof magic;
    *bad = known && memcmp(link->in, &magic, known) != 0;
    if (*bad || link->in_used < sizeof *head)
        return false;
    memcpy(head, link->in, sizeof *head);
    *bad = head->bytes > (link->process < 0 ? sizeof(trek_control_hello) : TREK_CONTROL_PAYLOAD);
    size_t length = sizeof *head + head->bytes;
    if (*bad || link->in_used < length + TREK_SEAL_BYTES)
        return false;
    *data = link->in + sizeof *head;
    *bad = link->forged = !trek_seal_check(&link->seal, link->in, length, link->in + length);
    return !*bad;
}

void trek_control_consume(trek_control_link *link, const trek_control_head *head)
{
    size_t length = sizeof *head + head->bytes + TREK_SEAL_BYTES;
    if (link->in_used < length) /* it was closed meanwhile */
        return;
    memmove(link->in, link->in + length, link->in_used - length);
    link->in_used -= length;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What comes to a door, and to where newcomers wait: who is let in, who is told what, and notes that nobody would write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/door_internal.h"
#include "distributed/system/socket.h"
#include "tensor/trace.h"
#include "tests/support/processes.h"

enum { PROGRAM = 77, WORLD = 9 };

/* Process 0 of two, which lets newcomers in. */
static trek_door *open_group(int *port)
{
    trek_door *door = trek_door_open("127.0.0.1", "secret", 0);
    assert_non_null(door);
    trek_member members[2] = { trek_door_member(door), { .number = 1, .port = 9, .address = "127.0.0.1" } };
    assert_int_equal(trek_door_enter(door, 3, members, 2), TREK_OK);
    *port = processes_free_port();
    assert_int_equal(trek_door_admit(door, "127.0.0.1", *port, 0, PROGRAM, WORLD), TREK_OK);
    assert_true(trek_door_admits(door));
    return door;
}

static int connect_to(int port)
{
    char why[256];
    int fd = trek_socket_connect("127.0.0.1", port, trek_clock_ns() + 5000000000, NULL, NULL, why, sizeof why);
    assert_true(fd >= 0);
    return fd;
}

static trek_door_note join_of(const trek_door *door, int number)
{
    trek_door_note note = trek_door_note_of(door, TREK_DOOR_JOIN);
    note.number = number;
    note.port = 1000 + number;
    note.program = PROGRAM;
    note.processes = WORLD;
    strcpy(note.address, "127.0.0.1");
    return note;
}

/* The kind of the answer; 0: the connection was closed. */
static int hear(const trek_door *door, trek_door_line *line)
{
    trek_door_note note;
    int got = 0;
    for (int k = 0; k < 500 && got == 0; k++) {
        struct pollfd wait = { .fd = line->fd, .events = POLLIN };
        poll(&wait, 1, 10);
        got = trek_door_receive(door, line, &note);
    }
    return got == 1 ? note.kind : 0;
}

static int hear_other(const trek_door *door, trek_door_line *line)
{
    int kind = TREK_DOOR_BEAT;
    while (kind == TREK_DOOR_BEAT)
        kind = hear(door, line);
    return kind;
}

static int ask(const trek_door *door, int port, const trek_door_note *note, trek_door_line *line)
{
    *line = (trek_door_line){ .fd = connect_to(port) };
    assert_true(trek_door_send(door, line, note));
    return hear(door, line);
}

static void test_waiting(void **state)
{
    (void)state;
    int port;
    trek_door_line fd[4];
    trek_member list[4];
    trek_door *door = open_group(&port);
    trek_door_note five = join_of(door, 5), two = join_of(door, 2), one = join_of(door, 1), other = join_of(door, 3);
    assert_int_equal(ask(door, port, &five, &fd[0]), TREK_DOOR_BEAT);
    assert_int_equal(ask(door, port, &two, &fd[1]), TREK_DOOR_BEAT);
    assert_int_equal(ask(door, port, &one, &fd[2]), TREK_DOOR_BEAT);
    other.program++;
    assert_int_equal(ask(door, port, &other, &fd[3]), TREK_DOOR_DIFFERS);
    assert_int_equal(trek_door_waiting(door, list, 1), 1);
    assert_int_equal(trek_door_waiting(door, list, 4), 2); /* by number; process 1 is a member, at two meetings */
    assert_true(list[0].number == 2 && list[0].port == 1002 && list[1].number == 5);
    assert_int_equal(trek_door_invite(door, list, 1), TREK_OK);
    assert_int_equal(trek_door_members(door), 3);
    assert_int_equal(hear_other(door, &fd[2]), TREK_DOOR_TAKEN);
    trek_lock_acquire(&door->lock);
    trek_door_send_on(door, &door->own);
    trek_lock_release(&door->lock);
    assert_int_equal(hear_other(door, &fd[1]), TREK_DOOR_GO);
    trek_door_note probe = trek_door_note_of(door, TREK_DOOR_PROBE), join = join_of(door, 5);
    trek_socket_close(fd[3].fd);
    assert_int_equal(ask(door, trek_door_member(door).port, &probe, &fd[3]), TREK_DOOR_COMING);
    trek_socket_close(fd[3].fd);
    assert_int_equal(ask(door, port, &join, &fd[3]), TREK_DOOR_BEAT); /* the same number once more */
    assert_int_equal(hear_other(door, &fd[0]), TREK_DOOR_TAKEN);
    static trek_door token; /* all of it that is still needed */
    token.secret = door->secret;
    trek_door_free(&door);
    assert_int_equal(hear_other(&token, &fd[3]), TREK_DOOR_OVER);
    for (int k = 0; k < 4; k++)
        trek_socket_close(fd[k].fd);
}

static int strangers(trek_door *door, bool *rests)
{
    int n = 0;
    trek_lock_acquire(&door->lock);
    for (int k = 0; k < door->n_visitors; k++)
        n += door->visitors[k].line.fd >= 0;
    *rests = door->rest_ns != 0;
    trek_lock_release(&door->lock);
    return n;
}

/* However many come who say nothing, few are there at a time, and who speaks is heard. */
static void test_crowd(void **state)
{
    (void)state;
    enum { CROWD = 300 };
    int port, silent[CROWD], most = 0;
    trek_door_line fd;
    bool rests;
    trek_door *door = open_group(&port);
    for (int k = 0; k < CROWD; k++) {
        silent[k] = connect_to(k % 2 ? port : trek_door_member(door).port);
        int n = strangers(door, &rests);
        most = n > most ? n : most;
    }
    trek_door_note five = join_of(door, 5);
    int answer = ask(door, port, &five, &fd);
    for (int k = 0; k < 50 && answer != TREK_DOOR_BEAT; k++) { /* on a busy machine it may not speak in time */
        trek_socket_close(fd.fd);
        answer = ask(door, port, &five, &fd);
    }
    assert_int_equal(answer, TREK_DOOR_BEAT);
    for (int k = 0; k < 100; k++) {
        int n = strangers(door, &rests);
        most = n > most ? n : most;
        poll(NULL, 0, 2);
    }
    assert_in_range(most, 2, TREK_DOOR_STRANGERS + 1);
    for (int k = 0; k < CROWD; k++)
        trek_socket_close(silent[k]);
    trek_door_free(&door);
    trek_socket_close(fd.fd);
}

/* Without a descriptor left it waits, and does not ask again and again. */
static void test_no_descriptors(void **state)
{
    (void)state;
    int port, fd, last = 0;
    bool rests = false;
    struct rlimit before, none;
    trek_door *door = open_group(&port);
    fd = connect_to(port);
    while (strangers(door, &rests) < 1)
        poll(NULL, 0, 1);
    int next = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    trek_door_line line = { .fd = next };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    last = dup(next);
    close(last); /* the next descriptor that the system would give */
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = (rlim_t)last;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(connect(next, (struct sockaddr *)&to, sizeof to), 0);
    for (int k = 0; k < 2000 && !rests; k++) {
        strangers(door, &rests);
        poll(NULL, 0, 1);
    }
    setrlimit(RLIMIT_NOFILE, &before);
    assert_true(rests);
    trek_door_note five = join_of(door, 5);
    assert_true(trek_door_send(door, &line, &five));
    assert_int_equal(hear(door, &line), TREK_DOOR_BEAT); /* and then it comes in */
    trek_socket_close(fd);
    trek_socket_close(next);
    trek_door_free(&door);
}

/* Of another job, as far as its launcher says. */
static void test_other_world(void **state)
{
    (void)state;
    int port;
    trek_door_line fd[2];
    trek_door *door = open_group(&port);
    trek_door_note more = join_of(door, 2), none = join_of(door, WORLD);
    more.processes = WORLD + 1;
    assert_int_equal(ask(door, port, &more, &fd[0]), TREK_DOOR_OTHER_WORLD);
    assert_int_equal(ask(door, port, &none, &fd[1]), TREK_DOOR_OTHER_WORLD);
    trek_door_free(&door);
    trek_socket_close(fd[0].fd);
    trek_socket_close(fd[1].fd);
}

/* Who looks for a group in another way than the one that listens there forms it is told to come again: a newcomer, where the
 * first group is joined; and who joins the next group, where newcomers wait. */
static void test_later(void **state)
{
    (void)state;
    int port, ends[2], fd;
    trek_control_opts opts = { .processes = 2, .port = 1, .token = "secret" };
    trek_control *control = trek_control_make(&opts);
    static trek_door token;
    trek_hmac_key_of("secret", 6, &token.secret);
    trek_door_note join = join_of(&token, 1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    control->newcomers[0] = (trek_control_link){ .fd = ends[0], .process = -1 };
    trek_door_line line = { .fd = ends[1] };
    trek_door_note note;
    assert_true(trek_door_send(&token, &line, &join));
    trek_control_serve_newcomer(control, &control->newcomers[0]);
    assert_int_equal(trek_door_receive(&token, &line, &note), 0); /* it answers, and is answered */
    trek_control_serve_newcomer(control, &control->newcomers[0]);
    assert_int_equal(hear(&token, &line), TREK_DOOR_LATER);
    close(ends[1]);
    trek_door *door = open_group(&port);
    trek_control_link link = { .fd = fd = connect_to(port) };
    trek_control_say_hello(control, &link, "", 0);
    trek_control_head head = { .type = 0 };
    const char *data;
    bool bad = false, said = false;
    for (int k = 0; k < 500 && !said && !bad; k++) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        poll(&wait, 1, 10);
        trek_control_receive(control, &link);
        said = trek_control_shake(control, &link) == TREK_SHAKE_DONE && trek_control_message(&link, &head, &data, &bad);
    }
    assert_true(said && head.type == TREK_CONTROL_LATER);
    trek_control_consume(&link, &head);
    assert_false(trek_control_message(&link, &head, &data, &bad) || bad); /* and not hung up on */
    trek_door_free(&door);
    trek_control_link_close(&link);
    trek_control_destroy(control);
}

/* The others know of a door before its own process has entered the group: it is alive. */
static void test_between(void **state)
{
    (void)state;
    trek_door_line probing = { .fd = -1 }, visiting = { .fd = -1 };
    trek_door *door = trek_door_open("127.0.0.1", "secret", 0);
    trek_member members[2] = { trek_door_member(door), { .number = 1, .port = 9, .address = "127.0.0.1" } };
    trek_door_note probe = trek_door_note_of(door, TREK_DOOR_PROBE), visit = trek_door_note_of(door, TREK_DOOR_VISIT);
    struct pollfd early[2];
    probe.number = visit.number = 1;
    early[0] = (struct pollfd){ .fd = probing.fd = connect_to(members[0].port), .events = POLLIN };
    early[1] = (struct pollfd){ .fd = visiting.fd = connect_to(members[0].port), .events = POLLIN };
    assert_true(trek_door_send(door, &probing, &probe) && trek_door_send(door, &visiting, &visit));
    assert_int_equal(poll(early, 2, 400), 0); /* neither an answer nor an end */
    assert_int_equal(trek_door_enter(door, 0, members, 2), TREK_OK);
    assert_int_equal(hear(door, &probing), TREK_DOOR_COMING);
    assert_int_equal(hear(door, &visiting), TREK_DOOR_BEAT);
    trek_socket_close(probing.fd);
    trek_socket_close(visiting.fd);
    trek_door_free(&door);
}

/* Unsound ones end the connection, and nobody waits. */
static void test_unsound(void **state)
{
    (void)state;
    int port;
    trek_door_line fd;
    trek_member list[4];
    trek_door *door = open_group(&port);
    for (int k = 0; k < 6; k++) {
        trek_door_note note = join_of(door, 4);
        note.number = k == 0 ? -1 : k == 1 ? TREK_MAX_RANKS : 4;
        note.port = k == 2 ? 0 : k == 3 ? 65536 : 1004;
        note.address[0] = k == 4 ? '\0' : '1';
        note.magic += k == 5;
        assert_int_equal(ask(door, port, &note, &fd), 0);
        trek_socket_close(fd.fd);
    }
    static trek_door other; /* a process of another job */
    trek_hmac_key_of("Secret", 6, &other.secret);
    trek_door_note note = join_of(&other, 4);
    assert_int_equal(ask(&other, port, &note, &fd), 0);
    assert_int_equal(fd.fault, TREK_SHAKE_SECRET);
    trek_socket_close(fd.fd);
    assert_int_equal(trek_door_waiting(door, list, 4), 0);
    trek_door_free(&door);
}

/* Anything, in pieces, on several connections: the door still answers. */
static void test_random(void **state)
{
    (void)state;
    int port;
    trek_door_line open[4] = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };
    trek_member list[8];
    trek_door *door = open_group(&port);
    uint32_t random = 5;
    for (int k = 0; k < 3000; k++) {
        trek_door_note note = join_of(door, k % 9 - 1);
        random = random * 1664525u + 1013904223u;
        int which = random >> 30;
        note.kind = (int)(random >> 8 & 15);
        for (int change = (int)(random >> 12 & 3); change > 0; change--) {
            random = random * 1664525u + 1013904223u;
            ((unsigned char *)&note)[(random >> 16) % offsetof(trek_door_note, code)] = (unsigned char)(random >> 8);
        }
        trek_door_line *line = &open[which];
        trek_door_note heard;
        if (line->fd < 0)
            *line = (trek_door_line){ .fd = connect_to(random >> 29 & 1 ? port : trek_door_member(door).port) };
        struct iovec part = { &note, random % sizeof note };
        bool whole = random >> 20 & 7; /* else a piece of one, in the midst of others */
        bool sent = whole ? trek_door_send(door, line, &note) : trek_socket_send(line->fd, &part, 1) >= 0;
        if (!sent || trek_door_receive(door, line, &heard) < 0 || (random >> 23 & 15) == 0) {
            trek_socket_close(line->fd);
            line->fd = -1;
        }
        if (k % 100 == 0) {
            int n = trek_door_waiting(door, list, 8);
            assert_int_equal(trek_door_invite(door, list, n > 2 ? 2 : n), TREK_OK);
            assert_int_equal(trek_door_enter(door, k, door->members, 2), TREK_OK);
        }
    }
    trek_door_note probe = trek_door_note_of(door, TREK_DOOR_PROBE);
    probe.number = 6;
    trek_door_line fd;
    assert_int_equal(ask(door, trek_door_member(door).port, &probe, &fd), TREK_DOOR_RUNNING);
    trek_socket_close(fd.fd);
    for (int k = 0; k < 4; k++)
        trek_socket_close(open[k].fd);
    trek_door_free(&door);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_waiting), cmocka_unit_test(test_other_world),
                                        cmocka_unit_test(test_later),   cmocka_unit_test(test_between),
                                        cmocka_unit_test(test_crowd),   cmocka_unit_test(test_no_descriptors),
                                        cmocka_unit_test(test_unsound), cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What comes to a rendezvous, and to where joiners wait: who is let in, who is told what, and notes that nobody would write. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/socket.h"
#include "tensor/trace.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { PROGRAM = 77, WORLD = 9 };

/* Process 0 of two, which lets joiners in. */
static trek_rendezvous *open_group(int *port)
{
    trek_rendezvous *rendezvous = trek_rendezvous_open("127.0.0.1", "secret", 0);
    assert_non_null(rendezvous);
    trek_member members[2] = { trek_rendezvous_member(rendezvous), { .number = 1, .port = 9, .address = "127.0.0.1" } };
    assert_int_equal(trek_rendezvous_enter(rendezvous, 3, members, 2), TREK_OK);
    *port = processes_free_port();
    assert_int_equal(trek_rendezvous_admit(rendezvous, "127.0.0.1", *port, 0, PROGRAM, WORLD), TREK_OK);
    assert_true(trek_rendezvous_admits(rendezvous));
    return rendezvous;
}

static int connect_to(int port)
{
    char why[256];
    int fd = trek_socket_connect("127.0.0.1", port, trek_clock_ns() + 5000000000, NULL, NULL, why, sizeof why);
    assert_true(fd >= 0);
    return fd;
}

static trek_rendezvous_note join_of(const trek_rendezvous *rendezvous, int number)
{
    trek_rendezvous_note note = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_JOIN);
    note.number = number;
    note.port = 1000 + number;
    note.program = PROGRAM;
    note.processes = WORLD;
    note.ranks = 1;
    note.version = TREK_RENDEZVOUS_VERSION;
    strcpy(note.address, "127.0.0.1");
    return note;
}

/* The kind of the answer; 0: the connection was closed. */
static int hear(const trek_rendezvous *rendezvous, trek_rendezvous_line *line)
{
    trek_rendezvous_note note;
    int got = 0;
    for (double since = 0; got == 0 && test_wait(&since);) {
        struct pollfd wait = { .fd = line->fd, .events = POLLIN };
        poll(&wait, 1, 10);
        got = trek_rendezvous_receive(rendezvous, line, &note);
    }
    return got == 1 ? note.kind : 0;
}

static int hear_other(const trek_rendezvous *rendezvous, trek_rendezvous_line *line)
{
    int kind = TREK_RENDEZVOUS_BEAT;
    while (kind == TREK_RENDEZVOUS_BEAT)
        kind = hear(rendezvous, line);
    return kind;
}

static int ask(const trek_rendezvous *rendezvous, int port, const trek_rendezvous_note *note, trek_rendezvous_line *line)
{
    *line = (trek_rendezvous_line){ .fd = connect_to(port) };
    assert_true(trek_rendezvous_send(rendezvous, line, note));
    return hear(rendezvous, line);
}

static void test_waiting(void **state)
{
    int port;
    trek_rendezvous_line fd[4];
    trek_joiner list[4];
    trek_rendezvous *rendezvous = open_group(&port);
    trek_rendezvous_note five = join_of(rendezvous, 5), two = join_of(rendezvous, 2), one = join_of(rendezvous, 1),
        other = join_of(rendezvous, 3);
    assert_int_equal(ask(rendezvous, port, &five, &fd[0]), TREK_RENDEZVOUS_BEAT);
    assert_int_equal(ask(rendezvous, port, &two, &fd[1]), TREK_RENDEZVOUS_BEAT);
    assert_int_equal(ask(rendezvous, port, &one, &fd[2]), TREK_RENDEZVOUS_BEAT);
    other.program++;
    assert_int_equal(ask(rendezvous, port, &other, &fd[3]), TREK_RENDEZVOUS_DIFFERS);
    assert_int_equal(trek_rendezvous_waiting(rendezvous, list, 1), 1);
    assert_int_equal(trek_rendezvous_waiting(rendezvous, list, 4), 2); /* by number; process 1 is a member, at two meetings */
    assert_true(list[0].member.number == 2 && list[0].member.port == 1002 && list[1].member.number == 5);
    assert_int_equal(trek_rendezvous_invite(rendezvous, list, 1), TREK_OK);
    assert_int_equal(trek_rendezvous_members(rendezvous), 3);
    assert_int_equal(hear_other(rendezvous, &fd[2]), TREK_RENDEZVOUS_TAKEN);
    trek_lock_acquire(&rendezvous->lock);
    trek_rendezvous_send_on(rendezvous, &rendezvous->own);
    trek_lock_release(&rendezvous->lock);
    assert_int_equal(hear_other(rendezvous, &fd[1]), TREK_RENDEZVOUS_GO);
    trek_rendezvous_note probe = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_PROBE), join = join_of(rendezvous, 5);
    trek_socket_close(fd[3].fd);
    assert_int_equal(ask(rendezvous, trek_rendezvous_member(rendezvous).port, &probe, &fd[3]), TREK_RENDEZVOUS_COMING);
    trek_socket_close(fd[3].fd);
    assert_int_equal(ask(rendezvous, port, &join, &fd[3]), TREK_RENDEZVOUS_BEAT); /* the same number once more */
    assert_int_equal(hear_other(rendezvous, &fd[0]), TREK_RENDEZVOUS_TAKEN);
    static trek_rendezvous token; /* all of it that is still needed */
    token.secret = rendezvous->secret;
    trek_rendezvous_free(&rendezvous);
    assert_int_equal(hear_other(&token, &fd[3]), TREK_RENDEZVOUS_OVER);
    for (int k = 0; k < 4; k++)
        trek_socket_close(fd[k].fd);
}

static int strangers(trek_rendezvous *rendezvous, bool *rests)
{
    int n = 0;
    trek_lock_acquire(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_visitors; k++)
        n += rendezvous->visitors[k].line.fd >= 0;
    *rests = rendezvous->rest_ns != 0;
    trek_lock_release(&rendezvous->lock);
    return n;
}

/* However many come who say nothing, few are there at a time, and who speaks is heard. */
static void test_crowd(void **state)
{
    enum { CROWD = 300 };
    int port, silent[CROWD], most = 0;
    trek_rendezvous_line fd;
    bool rests;
    trek_rendezvous *rendezvous = open_group(&port);
    for (int k = 0; k < CROWD; k++) {
        silent[k] = connect_to(k % 2 ? port : trek_rendezvous_member(rendezvous).port);
        int n = strangers(rendezvous, &rests);
        most = n > most ? n : most;
    }
    trek_rendezvous_note five = join_of(rendezvous, 5);
    int answer = ask(rendezvous, port, &five, &fd);
    for (int k = 0; k < 50 && answer != TREK_RENDEZVOUS_BEAT; k++) { /* on a busy machine it may not speak in time */
        trek_socket_close(fd.fd);
        answer = ask(rendezvous, port, &five, &fd);
    }
    assert_int_equal(answer, TREK_RENDEZVOUS_BEAT);
    for (int k = 0; k < 100; k++) {
        int n = strangers(rendezvous, &rests);
        most = n > most ? n : most;
        poll(NULL, 0, 2);
    }
    assert_in_range(most, 2, TREK_RENDEZVOUS_STRANGERS + 1);
    for (int k = 0; k < CROWD; k++)
        trek_socket_close(silent[k]);
    trek_rendezvous_free(&rendezvous);
    trek_socket_close(fd.fd);
}

/* Without a descriptor left it waits, and does not ask again and again. */
static void test_no_descriptors(void **state)
{
    int port, fd, last = 0;
    bool rests = false;
    struct rlimit before, none;
    trek_rendezvous *rendezvous = open_group(&port);
    fd = connect_to(port);
    while (strangers(rendezvous, &rests) < 1)
        poll(NULL, 0, 1);
    int next = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    trek_rendezvous_line line = { .fd = next };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    last = dup(next);
    close(last); /* the next descriptor that the system would give */
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = (rlim_t)last;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(connect(next, (struct sockaddr *)&to, sizeof to), 0);
    for (double since = 0; !rests && test_wait(&since);)
        strangers(rendezvous, &rests);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_true(rests);
    trek_rendezvous_note five = join_of(rendezvous, 5);
    assert_true(trek_rendezvous_send(rendezvous, &line, &five));
    assert_int_equal(hear(rendezvous, &line), TREK_RENDEZVOUS_BEAT); /* and then it comes in */
    trek_socket_close(fd);
    trek_socket_close(next);
    trek_rendezvous_free(&rendezvous);
}

/* Of another job, as far as its launcher says. */
static void test_other_world(void **state)
{
    int port;
    trek_rendezvous_line fd[2];
    trek_rendezvous *rendezvous = open_group(&port);
    trek_rendezvous_note more = join_of(rendezvous, 2), none = join_of(rendezvous, WORLD);
    more.processes = WORLD + 1;
    assert_int_equal(ask(rendezvous, port, &more, &fd[0]), TREK_RENDEZVOUS_OTHER_WORLD);
    assert_int_equal(ask(rendezvous, port, &none, &fd[1]), TREK_RENDEZVOUS_OTHER_WORLD);
    trek_rendezvous_free(&rendezvous);
    trek_socket_close(fd[0].fd);
    trek_socket_close(fd[1].fd);
}

/* Who looks for a group in another way than the one that listens there forms it is told to come again: a joiner, where the
 * first group is joined; and who joins the next group, where joiners wait. */
static void test_later(void **state)
{
    int port, ends[2], fd;
    trek_control_opts opts = { .processes = 2, .port = 1, .token = "secret" };
    trek_control *control = trek_control_make(&opts);
    static trek_rendezvous token;
    trek_hmac_key_of("secret", 6, &token.secret);
    trek_rendezvous_note join = join_of(&token, 1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    control->arrivals[0] = (trek_control_link){ .fd = ends[0], .process = -1 };
    trek_rendezvous_line line = { .fd = ends[1] };
    trek_rendezvous_note note;
    assert_true(trek_rendezvous_send(&token, &line, &join));
    trek_control_serve_arrival(control, &control->arrivals[0]);
    assert_int_equal(trek_rendezvous_receive(&token, &line, &note), 0); /* it answers, and is answered */
    trek_control_serve_arrival(control, &control->arrivals[0]);
    assert_int_equal(hear(&token, &line), TREK_RENDEZVOUS_LATER);
    close(ends[1]);
    trek_rendezvous *rendezvous = open_group(&port);
    trek_control_link link = { .fd = fd = connect_to(port) };
    trek_control_say_hello(control, &link, "", 0);
    trek_control_head head = { .type = 0 };
    const char *data;
    bool bad = false, said = false;
    for (double since = 0; !said && !bad && test_wait(&since);) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        poll(&wait, 1, 10);
        trek_control_receive(control, &link);
        said = trek_control_shake(control, &link) == TREK_SHAKE_DONE && trek_control_message(&link, &head, &data, &bad);
    }
    assert_true(said && head.type == TREK_CONTROL_LATER);
    trek_control_consume(&link, &head);
    assert_false(trek_control_message(&link, &head, &data, &bad) || bad); /* and not hung up on */
    trek_rendezvous_free(&rendezvous);
    trek_control_link_close(&link);
    trek_control_destroy(control);
}

/* The others know of a rendezvous before its own process has entered the group: it is alive. */
static void test_between(void **state)
{
    trek_rendezvous_line probing = { .fd = -1 }, visiting = { .fd = -1 };
    trek_rendezvous *rendezvous = trek_rendezvous_open("127.0.0.1", "secret", 0);
    trek_member members[2] = { trek_rendezvous_member(rendezvous), { .number = 1, .port = 9, .address = "127.0.0.1" } };
    trek_rendezvous_note probe = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_PROBE),
        visit = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_VISIT);
    struct pollfd early[2];
    probe.number = visit.number = 1;
    early[0] = (struct pollfd){ .fd = probing.fd = connect_to(members[0].port), .events = POLLIN };
    early[1] = (struct pollfd){ .fd = visiting.fd = connect_to(members[0].port), .events = POLLIN };
    assert_true(trek_rendezvous_send(rendezvous, &probing, &probe) && trek_rendezvous_send(rendezvous, &visiting, &visit));
    assert_int_equal(poll(early, 2, 400), 0); /* neither an answer nor an end */
    assert_int_equal(trek_rendezvous_enter(rendezvous, 0, members, 2), TREK_OK);
    assert_int_equal(hear(rendezvous, &probing), TREK_RENDEZVOUS_COMING);
    assert_int_equal(hear(rendezvous, &visiting), TREK_RENDEZVOUS_BEAT);
    trek_socket_close(probing.fd);
    trek_socket_close(visiting.fd);
    trek_rendezvous_free(&rendezvous);
}

/* A member that leaves in order has told those that are alive how much it has done. What no member says does not count. */
static void test_farewell(void **state)
{
    trek_rendezvous *all[3];
    trek_member members[4] = { { .number = 3, .port = 9, .address = "127.0.0.1" } }; /* it has died */
    for (int k = 0; k < 3; k++) {
        all[k] = trek_rendezvous_open("127.0.0.1", "secret", k);
        assert_non_null(all[k]);
        members[k + 1] = trek_rendezvous_member(all[k]);
    }
    for (int k = 0; k < 2; k++)
        assert_int_equal(trek_rendezvous_enter(all[k], 0, members, 3), TREK_OK);
    assert_int_equal(trek_rendezvous_enter(all[2], 0, members, 4), TREK_OK); /* the others have gone on without it */
    trek_rendezvous_leave(all[2], 9);
    assert_int_equal(trek_rendezvous_left(all[0]), 0);
    trek_rendezvous_leave(all[1], 7);
    assert_int_equal(trek_rendezvous_left(all[0]), 7);
    assert_int_equal(trek_rendezvous_left(all[1]), 0);
    trek_rendezvous_free(&all[1]);
    trek_rendezvous_leave(all[0], 8); /* to nobody that answers */
    trek_rendezvous_free(&all[0]);
    trek_rendezvous_free(&all[2]);
}

/* The number that a newcomer is told when it is let in, or -1. */
static int number_of(const trek_rendezvous *rendezvous, trek_rendezvous_line *line)
{
    trek_rendezvous_note note = { .kind = TREK_RENDEZVOUS_BEAT };
    int got = 1;
    for (double since = 0; got >= 0 && note.kind == TREK_RENDEZVOUS_BEAT && test_wait(&since);) {
        struct pollfd wait = { .fd = line->fd, .events = POLLIN };
        poll(&wait, 1, 10);
        got = trek_rendezvous_receive(rendezvous, line, &note);
    }
    return note.kind == TREK_RENDEZVOUS_GO && note.processes == WORLD ? note.process : -1;
}

/* Newcomers get numbers that nobody has had: not those of the group, of processes that have died, or of others that wait. */
static void test_newcomers(void **state)
{
    int port;
    trek_rendezvous_line line[3];
    trek_joiner list[4];
    trek_rendezvous *rendezvous = open_group(&port);
    assert_int_equal(trek_rendezvous_first_unused(rendezvous), WORLD);
    trek_rendezvous_note_unused(rendezvous, WORLD + 3); /* another member knows of more */
    trek_rendezvous_note_unused(rendezvous, 1);
    trek_rendezvous_note new = join_of(rendezvous, -1);
    new.processes = 2;
    new.ranks = 5;
    new.engines = 6;
    new.machine = 7;
    for (int k = 0; k < 3; k++) {
        new.port = 1000 + k;
        assert_int_equal(ask(rendezvous, port, &new, &line[k]), TREK_RENDEZVOUS_BEAT);
    }
    assert_int_equal(trek_rendezvous_joiners(rendezvous), 3);
    assert_int_equal(trek_rendezvous_waiting(rendezvous, list, 4), 3);
    for (int k = 0; k < 3; k++)
        assert_true(list[k].member.number == WORLD + 3 + k && list[k].member.port == 1000 + k && list[k].ranks == 5 &&
                    list[k].engines == 6 && list[k].machine == 7);
    trek_rendezvous_turn_away(rendezvous, &list[1], TREK_RENDEZVOUS_NO_ROOM);
    trek_rendezvous_turn_away(rendezvous, &list[2], TREK_RENDEZVOUS_NO_ENGINE);
    assert_int_equal(hear_other(rendezvous, &line[1]), TREK_RENDEZVOUS_FULL);
    assert_int_equal(hear_other(rendezvous, &line[2]), TREK_RENDEZVOUS_APART);
    assert_int_equal(trek_rendezvous_invite(rendezvous, list, 1), TREK_OK);
    trek_lock_acquire(&rendezvous->lock);
    trek_rendezvous_send_on(rendezvous, &rendezvous->own);
    trek_lock_release(&rendezvous->lock);
    assert_int_equal(number_of(rendezvous, &line[0]), WORLD + 3);
    assert_int_equal(trek_rendezvous_first_unused(rendezvous), WORLD + 6);
    trek_member members[1] = { { .number = 40, .port = 9, .address = "127.0.0.1" } };
    assert_int_equal(trek_rendezvous_enter(rendezvous, 4, members, 1), TREK_OK);
    assert_int_equal(trek_rendezvous_first_unused(rendezvous), 41);
    for (int k = 0; k < 3; k++)
        trek_socket_close(line[k].fd);
    trek_rendezvous_free(&rendezvous);
}

/* Of a process that was in the job, and of a newcomer. */
static void test_other_version(void **state)
{
    int port;
    trek_rendezvous *rendezvous = open_group(&port);
    for (int number = -1; number < 3; number += 3) {
        trek_rendezvous_line line;
        trek_rendezvous_note note = join_of(rendezvous, number);
        note.version++;
        assert_int_equal(ask(rendezvous, port, &note, &line), TREK_RENDEZVOUS_OTHER_VERSION);
        trek_socket_close(line.fd);
    }
    trek_rendezvous_free(&rendezvous);
}

/* Unsound ones end the connection, and nobody waits. */
static void test_unsound(void **state)
{
    int port;
    trek_rendezvous_line fd;
    trek_joiner list[4];
    trek_rendezvous *rendezvous = open_group(&port);
    for (int k = 0; k < 8; k++) {
        trek_rendezvous_note note = join_of(rendezvous, 4);
        note.ranks = k == 6 ? 0 : k == 7 ? TREK_MAX_RANKS + 1 : 1;
        note.number = k == 0 ? -2 : k == 1 ? TREK_MAX_RANKS : 4;
        note.port = k == 2 ? 0 : k == 3 ? 65536 : 1004;
        note.address[0] = k == 4 ? '\0' : '1';
        note.magic += k == 5;
        assert_int_equal(ask(rendezvous, port, &note, &fd), 0);
        trek_socket_close(fd.fd);
    }
    static trek_rendezvous other; /* a process of another job */
    trek_hmac_key_of("Secret", 6, &other.secret);
    trek_rendezvous_note note = join_of(&other, 4);
    assert_int_equal(ask(&other, port, &note, &fd), 0);
    assert_int_equal(fd.fault, TREK_SHAKE_SECRET);
    trek_socket_close(fd.fd);
    assert_int_equal(trek_rendezvous_waiting(rendezvous, list, 4), 0);
    trek_rendezvous_free(&rendezvous);
}

/* Anything, in pieces, on several connections: the rendezvous still answers. */
static void test_random(void **state)
{
    int port;
    trek_rendezvous_line open[4] = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };
    trek_joiner list[8];
    trek_rendezvous *rendezvous = open_group(&port);
    uint32_t random = 5;
    for (int k = 0; k < 3000; k++) {
        trek_rendezvous_note note = join_of(rendezvous, k % 9 - 1);
        random = random * 1664525u + 1013904223u;
        int which = random >> 30;
        note.kind = (int)(random >> 8 & 15);
        for (int change = (int)(random >> 12 & 3); change > 0; change--) {
            random = random * 1664525u + 1013904223u;
            ((unsigned char *)&note)[(random >> 16) % offsetof(trek_rendezvous_note, code)] = (unsigned char)(random >> 8);
        }
        trek_rendezvous_line *line = &open[which];
        trek_rendezvous_note heard;
        if (line->fd < 0)
            *line = (trek_rendezvous_line){ .fd = connect_to(random >> 29 & 1 ? port : trek_rendezvous_member(rendezvous).port) };
        struct iovec part = { &note, random % sizeof note };
        bool whole = random >> 20 & 7; /* else a piece of one, in the midst of others */
        bool sent = whole ? trek_rendezvous_send(rendezvous, line, &note) : trek_socket_send(line->fd, &part, 1) >= 0;
        if (!sent || trek_rendezvous_receive(rendezvous, line, &heard) < 0 || (random >> 23 & 15) == 0) {
            trek_socket_close(line->fd);
            line->fd = -1;
        }
        if (k % 100 == 0) {
            int n = trek_rendezvous_waiting(rendezvous, list, 8);
            assert_int_equal(trek_rendezvous_invite(rendezvous, list, n > 2 ? 2 : n), TREK_OK);
            assert_int_equal(trek_rendezvous_enter(rendezvous, k, rendezvous->members, 2), TREK_OK);
        }
    }
    trek_rendezvous_note probe = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_PROBE);
    probe.number = 6;
    trek_rendezvous_line fd;
    assert_int_equal(ask(rendezvous, trek_rendezvous_member(rendezvous).port, &probe, &fd), TREK_RENDEZVOUS_RUNNING);
    trek_socket_close(fd.fd);
    for (int k = 0; k < 4; k++)
        trek_socket_close(open[k].fd);
    trek_rendezvous_free(&rendezvous);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_waiting), cmocka_unit_test(test_other_world),
                                        cmocka_unit_test(test_later),   cmocka_unit_test(test_between),
                                        cmocka_unit_test(test_crowd),   cmocka_unit_test(test_no_descriptors),
                                        cmocka_unit_test(test_farewell), cmocka_unit_test(test_newcomers),
                                        cmocka_unit_test(test_other_version), cmocka_unit_test(test_unsound),
                                        cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake of connections between processes of a job: its codes against published ones, what it says to whom, and what the
 * seals of messages let through. */
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/handshake.h"
#include "tensor/trace.h"
#include "tests/support/unit.h"

#define SECRET "a secret of 23 bytes..."

/* --- SHA-256 and HMAC --------------------------------------------------------------------------------------------- */

static const char *hex(const unsigned char code[32])
{
    static char text[65];
    for (int k = 0; k < 32; k++)
        snprintf(text + 2 * k, 3, "%02x", code[k]);
    return text;
}

/* The examples of RFC 4231, of which the fifth is of a part of the code. */
static void check_hmac(void)
{
    static const struct {
        int key_byte, key_bytes; /* a byte that is repeated; -1: 1, 2, 3; -2: text */
        const char *data;        /* NULL: 50 times the byte */
        int byte;
        const char *code;
    } rows[] = {
        { 0x0b, 20, "Hi There", 0, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" },
        { -2, 4, "what do ya want for nothing?", 0, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" },
        { 0xaa, 20, NULL, 0xdd, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe" },
        { -1, 25, NULL, 0xcd, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b" },
        { 0x0c, 20, "Test With Truncation", 0, "a3b6167473100ee06e0c796c2955552b" },
        { 0xaa, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 0,
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54" },
        { 0xaa, 131, "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
          "hashed before being used by the HMAC algorithm.", 0,
          "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2" },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        unsigned char secret[131], fifty[50], code[32];
        memset(secret, rows[r].key_byte, sizeof secret);
        memset(fifty, rows[r].byte, sizeof fifty);
        for (int k = 0; rows[r].key_byte == -1 && k < rows[r].key_bytes; k++)
            secret[k] = (unsigned char)(k + 1);
        if (rows[r].key_byte == -2)
            memcpy(secret, (const unsigned char[]){ 0x4a, 0x65, 0x66, 0x65 }, 4); /* Jefe */
        const char *data = rows[r].data ? rows[r].data : (const char *)fifty;
        size_t bytes = rows[r].data ? strlen(data) : sizeof fifty;
        trek_hmac_key key;
        trek_sha256_state whole, pieces;
        trek_hmac_key_of(secret, (size_t)rows[r].key_bytes, &key);
        trek_hmac_begin(&whole, &key);
        trek_sha256_add(&whole, data, bytes);
        trek_hmac_end(&whole, &key, code);
        assert_memory_equal(hex(code), rows[r].code, strlen(rows[r].code));
        trek_hmac_begin(&pieces, &key);
        for (size_t k = 0; k < bytes; k++)
            trek_sha256_add(&pieces, data + k, 1);
        trek_hmac_end(&pieces, &key, code);
        assert_memory_equal(hex(code), rows[r].code, strlen(rows[r].code));
    }
}

/* By the processor's instructions, where it has them, and without. */
static void test_hmac(void **state)
{
    for (int portable = 0; portable < 2; portable++) {
        trek_sha256_set_portable(portable);
        check_hmac();
    }
    trek_sha256_set_portable(false);
}

/* --- two ends ------------------------------------------------------------------------------------------------------- */

typedef struct end {
    trek_hmac_key secret;
    trek_identity own;
    trek_seal seal;
    int fd;
    size_t heard;
    char said[1024]; /* all that has come */
} end;

static void make_ends(end *caller, end *listener, const char *secret, const char *other)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    *caller = (end){ .fd = ends[0], .own = { .role = TREK_ROLE_CHANNEL, .process = 3, .generation = 7 } };
    *listener = (end){ .fd = ends[1], .own = { .role = TREK_ROLE_CHANNEL, .process = 0, .generation = 7 } };
    trek_hmac_key_of(secret, strlen(secret), &caller->secret);
    trek_hmac_key_of(other, strlen(other), &listener->secret);
    caller->own.secret = &caller->secret;
    listener->own.secret = &listener->secret;
}

static void close_ends(end *caller, end *listener)
{
    close(caller->fd);
    close(listener->fd);
}

/* Reads what has come, and goes on by it. */
static trek_shake go_on(end *e)
{
    size_t taken;
    ssize_t got = recv(e->fd, e->said + e->heard, sizeof e->said - e->heard, 0);
    if (got <= 0)
        return TREK_SHAKE_MORE;
    trek_shake how = trek_seal_shake(&e->seal, &e->own, e->fd, e->said + e->heard, (size_t)got, &taken);
    e->heard += (size_t)got;
    return how;
}

static void open_both(end *caller, end *listener)
{
    assert_true(trek_seal_call(&caller->seal, &caller->own, caller->fd));
    assert_int_equal(go_on(listener), TREK_SHAKE_MORE);
    assert_int_equal(go_on(caller), TREK_SHAKE_DONE);
    assert_int_equal(go_on(listener), TREK_SHAKE_DONE);
}

/* Both know who the other is, by whatever secret, and none at all. */
static void test_agreement(void **state)
{
    static const char *const secrets[] = { SECRET, "", "s" };
    for (int k = 0; k < 3; k++) {
        end caller, listener;
        make_ends(&caller, &listener, secrets[k], secrets[k]);
        open_both(&caller, &listener);
        assert_true(listener.seal.other.process == 3 && caller.seal.other.process == 0 && caller.seal.other.generation == 7);
        close_ends(&caller, &listener);
    }
}

/* Who has another secret is told, and so is who was asked; neither sends anything in which the secret is. */
static void test_other_secret(void **state)
{
    end caller, listener;
    char text[200];
    make_ends(&caller, &listener, SECRET, "another one of 20 b.");
    assert_true(trek_seal_call(&caller.seal, &caller.own, caller.fd));
    assert_int_equal(go_on(&listener), TREK_SHAKE_MORE);
    assert_int_equal(go_on(&caller), TREK_SHAKE_SECRET);
    assert_int_equal(go_on(&listener), TREK_SHAKE_SECRET);
    assert_non_null(strstr(trek_seal_why(&caller.seal, TREK_SHAKE_SECRET, "here:1", text, sizeof text), "the token is not"));
    assert_false(trek_seal_is_open(&caller.seal) || trek_seal_is_open(&listener.seal));
    assert_int_equal(listener.heard, 2 * sizeof(trek_handshake_note));
    trek_handshake_note notes[2];
    memcpy(notes, listener.said, sizeof notes);
    static const unsigned char nothing[32];
    for (int k = 0; k < 2; k++) /* no code of any kind has come from who was not answered by the secret */
        assert_memory_equal(notes[k].proof, nothing, sizeof nothing);
    assert_null(memmem(listener.said, listener.heard, SECRET, 8));
    close_ends(&caller, &listener);
}

/* What a false listener has been sent, and what it can make of the answer of a real process, opens no other connection. */
static void test_recordings(void **state)
{
    end caller, listener, again, other;
    trek_handshake_note notes[2];
    size_t taken;
    make_ends(&caller, &listener, SECRET, SECRET);
    open_both(&caller, &listener);
    memcpy(notes, listener.said, sizeof notes);
    make_ends(&again, &other, SECRET, SECRET); /* the caller's words once more */
    assert_int_equal(trek_seal_shake(&other.seal, &other.own, other.fd, (char *)&notes[0], sizeof notes[0], &taken),
                     TREK_SHAKE_MORE);
    assert_int_equal(trek_seal_shake(&other.seal, &other.own, other.fd, (char *)&notes[1], sizeof notes[1], &taken),
                     TREK_SHAKE_SECRET);
    close_ends(&again, &other);
    make_ends(&again, &other, SECRET, SECRET); /* the listener's, and the caller's own thrown back at it */
    for (int k = 0; k < 2; k++) {
        again.seal = (trek_seal){ .state = 0 };
        assert_true(trek_seal_call(&again.seal, &again.own, again.fd));
        trek_handshake_note note = again.seal.own;
        if (k == 0)
            memcpy(&note, caller.said, sizeof note);
        note.step = 2;
        assert_int_equal(trek_seal_shake(&again.seal, &again.own, again.fd, (char *)&note, sizeof note, &taken),
                         TREK_SHAKE_SECRET);
    }
    close_ends(&again, &other);
    close_ends(&caller, &listener);
}

/* Who each is stands under the codes: nobody on the way makes another process of it. */
static void test_changed_on_the_way(void **state)
{
    for (size_t at = 0; at < sizeof(trek_handshake_note); at += 4) {
        end caller, listener;
        trek_handshake_note answer;
        size_t taken;
        make_ends(&caller, &listener, SECRET, SECRET);
        assert_true(trek_seal_call(&caller.seal, &caller.own, caller.fd));
        assert_int_equal(go_on(&listener), TREK_SHAKE_MORE);
        assert_int_equal(recv(caller.fd, &answer, sizeof answer, 0), sizeof answer);
        ((unsigned char *)&answer)[at] ^= 1;
        trek_shake how = trek_seal_shake(&caller.seal, &caller.own, caller.fd, (char *)&answer, sizeof answer, &taken);
        assert_true(how != TREK_SHAKE_DONE && how != TREK_SHAKE_MORE && !trek_seal_is_open(&caller.seal));
        close_ends(&caller, &listener);
    }
}

/* Versions that differ are told to both, and before any code. */
static void test_versions(void **state)
{
    end caller, listener;
    char text[200];
    make_ends(&caller, &listener, SECRET, SECRET);
    assert_true(trek_seal_call(&caller.seal, &caller.own, caller.fd));
    trek_handshake_note call;
    size_t taken;
    assert_int_equal(recv(listener.fd, &call, sizeof call, 0), sizeof call);
    call.version = TREK_HANDSHAKE_VERSION + 1;
    assert_int_equal(trek_seal_shake(&listener.seal, &listener.own, listener.fd, (char *)&call, sizeof call, &taken),
                     TREK_SHAKE_VERSION);
    trek_handshake_note refusal;
    assert_int_equal(recv(caller.fd, &refusal, sizeof refusal, 0), sizeof refusal);
    refusal.version = TREK_HANDSHAKE_VERSION + 1; /* as the caller of that version would see it, the other way round */
    assert_int_equal(trek_seal_shake(&caller.seal, &caller.own, caller.fd, (char *)&refusal, sizeof refusal, &taken),
                     TREK_SHAKE_VERSION);
    trek_seal_why(&caller.seal, TREK_SHAKE_VERSION, "here:1", text, sizeof text);
    assert_string_equal(text, "it speaks version 7 of the control channel, and the program at here:1 version 8");
    close_ends(&caller, &listener);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* Each message once, in its order, unchanged, and in its direction. */
static void test_seals(void **state)
{
    end caller, listener;
    unsigned char codes[3][TREK_SEAL_BYTES];
    char messages[3][9] = { "message1", "message2", "message3" };
    make_ends(&caller, &listener, SECRET, SECRET);
    open_both(&caller, &listener);
    for (int k = 0; k < 3; k++) { /* in whatever parts */
        struct iovec parts[2] = { { messages[k], (size_t)k }, { messages[k] + k, (size_t)(8 - k) } };
        trek_seal_sign(&caller.seal, parts, 2, codes[k]);
    }
    trek_seal *in = &listener.seal;
    assert_false(trek_seal_check(in, messages[1], 8, codes[1])); /* before its turn */
    assert_true(trek_seal_check(in, messages[0], 8, codes[0]));
    assert_false(trek_seal_check(in, messages[0], 8, codes[0])); /* once more */
    assert_false(trek_seal_check(in, messages[0], 8, codes[1])); /* another one */
    assert_false(trek_seal_check(in, messages[1], 7, codes[1]));
    assert_false(trek_seal_check(&caller.seal, messages[0], 8, codes[0])); /* thrown back */
    assert_true(trek_seal_check(in, messages[1], 8, codes[1]) && trek_seal_check(in, messages[2], 8, codes[2]));
    close_ends(&caller, &listener);
}

/* --- the control channel ------------------------------------------------------------------------------------------ */

typedef struct pair {
    trek_control *zero, *one;
    int at_zero, at_one; /* what lies between them: this test */
} pair;

static void move_bytes(int from, int to, char *kept, size_t *n, int change)
{
    char bytes[4096];
    ssize_t got = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0)
        return;
    if (kept && *n + (size_t)got <= 4096) {
        memcpy(kept + *n, bytes, (size_t)got);
        *n += (size_t)got;
    }
    if (change && (size_t)got > sizeof(trek_control_head))
        bytes[sizeof(trek_control_head)] ^= 1;
    assert_int_equal(send(to, bytes, (size_t)got, MSG_NOSIGNAL), got);
}

/* Process 1 joins process 0; kept (NULL: it is not): all that process 1 has said. */
static pair join_pair(char *kept, size_t *n)
{
    pair p;
    int a[2], b[2];
    trek_control_opts opts = { .processes = 2, .port = 1, .token = SECRET };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, b), 0);
    p.zero = trek_control_make(&opts);
    opts.process = 1;
    p.one = trek_control_make(&opts);
    assert_true(p.zero && p.one);
    p.zero->arrivals[0] = (trek_control_link){ .fd = a[0], .process = -1 };
    p.one->links[0] = (trek_control_link){ .fd = b[0], .process = 0 };
    p.at_zero = a[1];
    p.at_one = b[1];
    trek_control_say_hello(p.one, &p.one->links[0], "", 0);
    for (int k = 0; k < 3; k++) {
        move_bytes(p.at_one, p.at_zero, kept, n, 0);
        if (p.zero->arrivals[0].fd >= 0)
            trek_control_serve_arrival(p.zero, &p.zero->arrivals[0]);
        move_bytes(p.at_zero, p.at_one, NULL, NULL, 0);
        trek_control_serve_link(p.one, &p.one->links[0]);
    }
    assert_true(p.zero->started && p.one->started);
    return p;
}

static void end_pair(pair *p)
{
    close(p->at_zero);
    close(p->at_one);
    trek_control_destroy(p->zero);
    trek_control_destroy(p->one);
}

/* All that a process has said, brought to the real process 0 once more, is not taken for it. */
static void test_replayed_join(void **state)
{
    static char said[4096];
    size_t n = 0;
    int ends[2];
    pair p = join_pair(said, &n);
    assert_null(memmem(said, n, SECRET, 8));
    trek_control_opts opts = { .processes = 2, .port = 1, .token = SECRET };
    trek_control *zero = trek_control_make(&opts);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    zero->arrivals[0] = (trek_control_link){ .fd = ends[0], .process = -1 };
    assert_int_equal(send(ends[1], said, n, MSG_NOSIGNAL), (ssize_t)n);
    for (int k = 0; k < 3 && zero->arrivals[0].fd >= 0; k++)
        trek_control_serve_arrival(zero, &zero->arrivals[0]);
    assert_true(!zero->started && !zero->peers[1].joined && zero->links[1].fd < 0);
    close(ends[1]);
    trek_control_destroy(zero);
    end_pair(&p);
}

/* A beat that was changed, repeated or left out ends the group, and the error says whose it was. */
static void test_tampering(void **state)
{
    for (int k = 0; k < 3; k++) {
        char kept[4096];
        size_t n = 0;
        pair p = join_pair(NULL, NULL);
        trek_control_send_beats(p.one);
        if (k == 2) /* the first one does not come */
            assert_true(recv(p.at_one, kept, sizeof kept, 0) > 0);
        if (k == 2)
            trek_control_send_beats(p.one);
        move_bytes(p.at_one, p.at_zero, kept, &n, k == 0);
        if (k == 1)
            assert_int_equal(send(p.at_zero, kept, n, MSG_NOSIGNAL), (ssize_t)n);
        trek_control_serve_link(p.zero, &p.zero->links[1]);
        assert_true(trek_control_ended(p.zero));
        assert_non_null(strstr(p.zero->message, "process 1 sent a message that is not sealed as the next one"));
        end_pair(&p);
    }
}

/* A process of a version without a handshake is told so in its own words, and its version's secret is not looked at. */
static void test_before_the_handshake(void **state)
{
    int ends[2];
    char answer[400] = "";
    trek_control_opts opts = { .processes = 2, .port = 1, .token = SECRET };
    trek_control *zero = trek_control_make(&opts);
    trek_control_head head = { .magic = TREK_CONTROL_MAGIC_OF_4, .type = TREK_CONTROL_HELLO, .bytes = 4 };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    zero->arrivals[0] = (trek_control_link){ .fd = ends[0], .process = -1 };
    assert_int_equal(send(ends[1], &head, sizeof head, 0), sizeof head);
    trek_control_serve_arrival(zero, &zero->arrivals[0]);
    assert_true(recv(ends[1], answer, sizeof answer - 1, 0) > (ssize_t)sizeof head);
    memcpy(&head, answer, sizeof head);
    assert_true(head.magic == TREK_CONTROL_MAGIC_OF_4 && head.type == TREK_CONTROL_REFUSED);
    assert_non_null(strstr(answer + sizeof head, "it speaks version 4 of the control channel, or an earlier one"));
    close(ends[1]);
    trek_control_destroy(zero);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hmac),          cmocka_unit_test(test_agreement),          cmocka_unit_test(test_other_secret),
        cmocka_unit_test(test_recordings),    cmocka_unit_test(test_changed_on_the_way), cmocka_unit_test(test_versions),
        cmocka_unit_test(test_seals),         cmocka_unit_test(test_replayed_join),      cmocka_unit_test(test_tampering),
        cmocka_unit_test(test_before_the_handshake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

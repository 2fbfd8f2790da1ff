/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"
#include "distributed/system/system.h"
#include "distributed/team/replica.h"
#include "distributed/timeline_internal.h"
#include "graph/timeline_internal.h"
#include "tensor/intern.h"
#include "tensor/memory_internal.h"

enum { MEETINGS = 20, PIECE = 1 << 20 };

/* --- clocks --------------------------------------------------------------------------------------------------------- */

/* Nobody leaves a meeting before all have come: on one clock a came before b left, and b came before a left. */
void trek_clock_bound(const trek_clock_meeting *first, const trek_clock_meeting *own, int n, int64_t *least, int64_t *most)
{
    *least = INT64_MIN;
    *most = INT64_MAX;
    for (int k = 0; k < n; k++) {
        int64_t low = own[k].came_ns - first[k].left_ns, high = own[k].left_ns - first[k].came_ns;
        *least = low > *least ? low : *least;
        *most = high < *most ? high : *most;
    }
}

/* --- what ranks send to each other
 * ------------------------------------------------------------------------------------ */

typedef struct card {
    char machine[128];
    uint64_t timeline;   /* the address of its timeline, between threads */
    int64_t bytes, count, dropped;
    int32_t ranks, unused;
    trek_clock_meeting meetings[MEETINGS];
} card;

/* An entry as it is sent: two texts follow it. */
typedef struct packed {
    trek_timeline_entry entry;
    uint32_t path, shapes;
} packed;

/* All that one rank sends. */
typedef struct parcel {
    char *data;
    size_t bytes;
} parcel;

static size_t length_of(const char *text)
{
    size_t length = strlen(text);
    return length < TREK_INTERN_LENGTH ? length : TREK_INTERN_LENGTH;
}

static size_t bytes_of(const trek_timeline_entry *e) { return sizeof(packed) + length_of(e->path) + length_of(e->shapes); }

static void pack(const trek_timeline_entry *entries, char *at, card *own)
{
    for (int64_t k = 0; k < own->count; k++) {
        const trek_timeline_entry *e = &entries[k];
        packed head = { .entry = *e, .path = (uint32_t)length_of(e->path), .shapes = (uint32_t)length_of(e->shapes) };
        memcpy(at, &head, sizeof head);
        memcpy(at + sizeof head, e->path, head.path);
        memcpy(at + sizeof head + head.path, e->shapes, head.shapes);
        at += bytes_of(e);
        own->ranks = e->rank >= own->ranks ? e->rank + 1 : own->ranks;
    }
}

/* Several threads may give the same timeline; the first of them sends it. */
static trek_status take_entries(trek_timeline *t, parcel *p, card *own)
{
    if (!t)
        return TREK_OK;
    trek_timeline_entry *entries = trek_timeline_snapshot(t, &own->count, &own->dropped);
    for (int64_t k = 0; entries && k < own->count; k++)
        p->bytes += bytes_of(&entries[k]);
    p->data = entries ? trek_alloc(p->bytes + 1) : NULL;
    if (p->data)
        pack(entries, p->data, own);
    trek_free(entries);
    own->bytes = (int64_t)p->bytes;
    own->timeline = (uint64_t)(uintptr_t)t;
    return p->data ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status meet(trek_comm *comm, card *own)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < MEETINGS && status == TREK_OK; k++) {
        own->meetings[k].came_ns = trek_now_ns();
        status = trek_comm_barrier(comm);
        own->meetings[k].left_ns = trek_now_ns();
    }
    return status;
}

/* Sends what rank r has to its receiver; the others discard it. */
static trek_status send_parcel(trek_comm *comm, int r, const parcel *own, int64_t bytes, char *room, parcel *all)
{
    trek_status status = TREK_OK;
    for (int64_t done = 0; done < bytes && status == TREK_OK; done += PIECE) {
        int64_t count = bytes - done < PIECE ? bytes - done : PIECE;
        char *data = comm->rank == r ? own->data + done : all ? all->data + done : room;
        status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .dtype = TREK_U8, .root = r, .count = count,
                                                       .in = data, .out = data });
    }
    return status;
}

/* --- the joined timeline ------------------------------------------------------------------------------------------------ */

typedef struct joining {
    trek_comm *comm;
    const card *cards;
    trek_timeline *result; /* on rank 0 */
    int first_rank;        /* of the next rank's entries */
} joining;

static bool is_repeated(const joining *j, int r)
{
    for (int q = 0; q < r && !j->comm->control; q++)
        if (j->cards[q].timeline == j->cards[r].timeline)
            return true;
    return false;
}

/* Returns by how much rank r's clock is ahead of rank 0's, and how wrong that may be. */
static int64_t offset_of(const joining *j, int r, int64_t *error_ns)
{
    int64_t least, most;
    trek_clock_bound(j->cards[0].meetings, j->cards[r].meetings, MEETINGS, &least, &most);
    bool same = !j->comm->control || strcmp(j->cards[r].machine, j->cards[0].machine) == 0;
    *error_ns = 0;
    if (r == 0 || (same && least <= 0 && most >= 0))
        return 0;
    *error_ns = (most - least + 1) / 2;
    return least + (most - least) / 2;
}

static void unpack(joining *j, int r, const parcel *p)
{
    int64_t error, offset = offset_of(j, r, &error);
    trek_timeline *t = j->result;
    const char *at = p->data;
    for (int64_t k = 0; k < j->cards[r].count; k++) {
        packed head;
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        head.entry.path = trek_interned(trek_intern(at, head.path, TREK_INTERN_FEW));
        head.entry.shapes = trek_interned(trek_intern(at + head.path, head.shapes, TREK_INTERN_FEW));
        at += head.path + head.shapes;
        head.entry.rank += j->first_rank;
        head.entry.start_ns -= offset;
        head.entry.end_ns -= offset;
        t->ring[t->count++] = head.entry;
    }
    t->dropped += j->cards[r].dropped;
}

static int by_end(const void *a, const void *b)
{
    int64_t x = ((const trek_timeline_entry *)a)->end_ns, y = ((const trek_timeline_entry *)b)->end_ns;
    return (x > y) - (x < y);
}

/* If rank 0 has no memory, it gives up its part but still takes part in the meetings. */
static trek_status bring(joining *j, const parcel *own, char *room)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < j->comm->world && status == TREK_OK; r++) {
        const card *c = &j->cards[r];
        if (is_repeated(j, r))
            continue;
        parcel theirs = { .bytes = (size_t)c->bytes };
        bool takes = j->comm->rank == 0 && r > 0;
        theirs.data = takes ? trek_alloc(theirs.bytes + 1) : own->data;
        trek_status got = takes && !theirs.data ? TREK_ERR_MEMORY : TREK_OK;
        status = send_parcel(j->comm, r, own, c->bytes, room, takes && theirs.data ? &theirs : NULL);
        if (status == TREK_OK && got == TREK_OK && j->comm->rank == 0 && j->result)
            unpack(j, r, &theirs);
        if (got != TREK_OK)
            trek_timeline_free(&j->result);
        if (takes)
            trek_free(theirs.data);
        j->first_rank += c->ranks > 0 ? c->ranks : 1;
    }
    return status;
}

static trek_timeline *new_result(const card *cards, int n)
{
    int64_t count = 0;
    for (int r = 0; r < n; r++)
        count += cards[r].count;
    return trek_timeline_new(&(trek_timeline_opts){ .capacity = count > 0 ? count : 1 });
}

static trek_timeline *join(trek_comm *comm, trek_timeline *timeline, card *cards, int64_t *error_ns)
{
    parcel own = { 0 };
    card *mine = &cards[comm->world];
    trek_status status = take_entries(timeline, &own, mine);
    char *room = trek_alloc(PIECE);
    if (status == TREK_OK && !room)
        status = TREK_ERR_MEMORY;
    status = trek_replica_agree(comm, status, "timelines");
    if (status == TREK_OK)
        status = meet(comm, mine);
    if (status == TREK_OK)
        status = trek_comm_gather_bytes(comm, mine, sizeof *mine, cards);
    joining j = { .comm = comm, .cards = cards };
    if (status == TREK_OK && comm->rank == 0)
        j.result = new_result(cards, comm->world);
    if (status == TREK_OK)
        status = bring(&j, &own, room);
    for (int r = 0; status == TREK_OK && error_ns && r < comm->world; r++) {
        int64_t error;
        offset_of(&j, r, &error);
        *error_ns = error > *error_ns ? error : *error_ns;
    }
    trek_free(own.data);
    trek_free(room);
    if (status != TREK_OK)
        trek_timeline_free(&j.result);
    if (j.result)
        qsort(j.result->ring, (size_t)j.result->count, sizeof *j.result->ring, by_end);
    return j.result;
}

trek_timeline *trek_timeline_join(trek_comm *comm, trek_timeline *timeline, int64_t *error_ns)
{
    if (error_ns)
        *error_ns = 0;
    if (!comm)
        return trek_fail_missing("timeline_join", "communicator"), NULL;
    card *cards = trek_calloc((size_t)comm->world + 1, sizeof *cards); /* this rank's own card follows those of all */
    if (!cards) {
        trek_comm_abort(comm, "a rank has no memory for the list of timelines");
        return NULL;
    }
    if (comm->control)
        snprintf(cards[comm->world].machine, sizeof cards->machine, "%s", trek_control_machine(comm->control));
    trek_timeline *result = join(comm, timeline, cards, error_ns);
    trek_free(cards);
    return result;
}

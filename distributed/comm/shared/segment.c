/* SPDX-License-Identifier: Apache-2.0 */
/* How processes come to share memory. Process 0 makes the segment and each process makes its window. Both are files
 * in memory without a name, so that nothing is left behind however a process ends. The others open them as
 * /proc/PID/fd/N, which the channel announces, and check that the random words in them are those that were announced.
 * All processes agree whether all could; otherwise none gets such a communicator. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/comm/shared/shared_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

enum { CORES = 1024 };

/* What each process announces to the others. */
typedef struct ticket {
    uint64_t layout;          /* bytes of the segment: they differ between versions */
    int32_t pid, segment_fd, window_fd;
    uint64_t window_bytes;
    uint64_t segment_nonce[2], window_nonce[2];
    unsigned char cores[CORES / 8]; /* the cores that it may run on */
} ticket;

uint64_t *trek_shared_offset(const trek_comm_shared *self, int turn, int rank)
{
    return (uint64_t *)(void *)((char *)self->segment + self->layout.offsets) + 2 * rank + turn;
}

char *trek_shared_part(const trek_comm_shared *self, int turn, int rank)
{
    return (char *)self->segment + self->layout.parts + (size_t)(2 * rank + turn) * self->layout.chunk;
}

char *trek_shared_result(const trek_comm_shared *self, int turn)
{
    return (char *)self->segment + self->layout.results + (size_t)turn * self->layout.chunk;
}

static size_t in_pages(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }

/* Lays out the segment. Pages that nobody touches take no memory: a group that reduces in place never uses the parts. */
static trek_shared_layout lay_out(int world)
{
    trek_shared_layout l = { .chunk = world <= 128 ? 256 << 10 : 1 << 20 };
    size_t n = (size_t)world, page = (size_t)sysconf(_SC_PAGESIZE);
    l.slots = in_pages(sizeof(trek_shared_segment), page);
    l.offsets = l.slots + in_pages(n * sizeof(trek_meeting_slot), page);
    l.parts = l.offsets + in_pages(2 * n * sizeof(uint64_t), page);
    l.results = l.parts + 2 * n * l.chunk;
    l.bytes = l.results + 2 * l.chunk;
    return l;
}

void *trek_shared_file_open(int pid, int fd, uint64_t bytes, const uint64_t nonce[2])
{
    int own = trek_process_file(pid, fd);
    if (own < 0)
        return NULL;
    struct stat about;
    void *memory = NULL;
    if (fstat(own, &about) == 0 && S_ISREG(about.st_mode) && (uint64_t)about.st_size == bytes)
        memory = trek_shared_file_map(own, 0, bytes);
    close(own);
    if (!memory)
        return NULL;
    madvise(memory, bytes, MADV_DONTDUMP);
    if (memcmp(memory, nonce, 2 * sizeof *nonce) == 0)
        return memory;
    munmap(memory, bytes);
    return NULL;
}

/* Called by process 0. The tickets of the others have no segment. */
static int make_segment(const trek_comm_shared *self, ticket *mine)
{
    int fd = trek_shared_file_new("trek-comm", self->layout.bytes);
    if (fd < 0)
        return -1;
    trek_shared_segment *segment = mmap(NULL, self->layout.slots, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ssize_t size = sizeof mine->segment_nonce;
    if (segment == MAP_FAILED || getrandom(mine->segment_nonce, (size_t)size, 0) != size) {
        if (segment != MAP_FAILED)
            munmap(segment, self->layout.slots);
        close(fd);
        return -1;
    }
    segment->meeting.gate.shared = true;
    memcpy(segment->nonce, mine->segment_nonce, sizeof segment->nonce);
    munmap(segment, self->layout.slots);
    return fd;
}

static void note_cores(ticket *mine)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (int k = 0; k < CORES && k < CPU_SETSIZE; k++)
        if (CPU_ISSET(k, &set))
            mine->cores[k / 8] |= (unsigned char)(1 << k % 8);
}

/* Counts the cores that any process may run on, whether they share them or have different ones. */
static int cores_of_all(const ticket *all, int world)
{
    int count = 0;
    for (int k = 0; k < CORES; k++) {
        bool any = false;
        for (int r = 0; r < world; r++)
            any |= (all[r].cores[k / 8] >> k % 8) & 1;
        count += any;
    }
    return count;
}

/* What a process can map and, if that is not everything, why, if it knows. */
typedef struct found {
    int32_t can; /* 0: not even the segment; 1: the segment but not the windows; 2: everything */
    int32_t is_limit;
    char why[160];
} found;

/* Notes what has failed. */
static void note_limit(found *mine)
{
    mine->is_limit = trek_process_is_limit(errno);
    trek_process_why(errno, mine->why, sizeof mine->why);
}

static void map_all(trek_comm_shared *self, const ticket *all, found *mine)
{
    int world = self->met.base.world;
    for (int r = 0; r < world; r++)
        if (all[r].layout != self->layout.bytes)
            return;
    errno = 0;
    if (all[0].segment_fd >= 0)
        self->segment = trek_shared_file_open(all[0].pid, all[0].segment_fd, self->layout.bytes, all[0].segment_nonce);
    if (all[0].segment_fd >= 0 && !self->segment)
        note_limit(mine);
    if (!self->segment)
        return;
    mine->can = 1;
    for (int r = 0; r < world; r++) {
        if (r == self->met.base.rank)
            continue;
        if (all[r].window_fd >= 0)
            self->window[r] = trek_shared_file_open(all[r].pid, all[r].window_fd, all[r].window_bytes, all[r].window_nonce);
        if (all[r].window_fd < 0 || !self->window[r])
            return;
        self->window_bytes[r] = all[r].window_bytes;
    }
    mine->can = 2;
}

/* A limit of the system is no reason to choose another engine, which has the same limit. */
static trek_status agree(trek_comm_shared *self, const found *mine, found *all)
{
    trek_status status = trek_control_gather(self->met.base.control, mine, sizeof *mine, all, self->met.base.deadline_ns);
    self->windows = true;
    for (int r = 0; r < self->met.base.world && status == TREK_OK; r++) {
        all[r].why[sizeof all[r].why - 1] = '\0';
        if (all[r].can == 0 && all[r].is_limit)
            status = trek_fail(TREK_ERR_MEMORY, "comm_shared: process %d has no memory to share with other processes: %s", r,
                               all[r].why);
    }
    for (int r = 0; r < self->met.base.world && status == TREK_OK; r++) {
        if (all[r].can == 0)
            status = trek_fail(TREK_ERR_UNSUPPORTED, "comm_shared: process %d cannot map the memory of process 0", r);
        self->windows &= all[r].can == 2;
    }
    return status;
}

trek_status trek_shared_segment_join(trek_comm_shared *self)
{
    int world = self->met.base.world;
    self->layout = lay_out(world);
    if (!trek_control_same_machine(self->met.base.control))
        return trek_fail(TREK_ERR_UNSUPPORTED, "comm_shared: the processes are on several machines; they must be on one");
    trek_shared_window window = trek_shared_window_open();
    ticket mine = { .layout = self->layout.bytes, .pid = (int32_t)trek_process_id(), .segment_fd = -1, .window_fd = window.fd,
                    .window_bytes = window.bytes };
    memcpy(mine.window_nonce, window.nonce, sizeof mine.window_nonce);
    note_cores(&mine);
    ticket *all = trek_calloc((size_t)world, sizeof *all + sizeof(found));
    found can = { .can = 0 };
    if (self->met.base.rank == 0 && all && (mine.segment_fd = make_segment(self, &mine)) < 0)
        note_limit(&can);
    /* A process without memory for the answers ends the meeting; the channel tells the others. */
    trek_status status = trek_error_status();
    if (all)
        status = trek_control_gather(self->met.base.control, &mine, sizeof mine, all, self->met.base.deadline_ns);
    if (status == TREK_OK) {
        map_all(self, all, &can);
        status = agree(self, &can, (found *)(void *)(all + world));
    }
    if (status == TREK_OK) {
        self->met.meeting = &self->segment->meeting;
        self->met.slots = (trek_meeting_slot *)(void *)((char *)self->segment + self->layout.slots);
        atomic_store(&self->met.meeting->spin, cores_of_all(all, world) >= world); /* all processes get the same result */
    } else if (!all) {
        trek_control_end(self->met.base.control, TREK_ERR_MEMORY, trek_error());
    }
    if (mine.segment_fd >= 0)
        close(mine.segment_fd);
    trek_free(all);
    return status;
}

void trek_shared_segment_leave(trek_comm_shared *self)
{
    for (int r = 0; r < self->met.base.world; r++)
        if (self->window && self->window[r])
            munmap(self->window[r], self->window_bytes[r]);
    if (self->segment)
        munmap(self->segment, self->layout.bytes);
    self->segment = NULL;
}

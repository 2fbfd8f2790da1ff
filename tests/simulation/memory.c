/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, mappings and files of simulated processes. They are the system's own; what is kept here is whose they are: what a dead
 * process had is given back, what a living one has not given back is told. The linker sends these calls here (--wrap). */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/memory.h"
#include "tests/simulation/simulation.h"

void *__real_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__real_mremap(void *memory, size_t bytes, size_t new_bytes, int flags, ...);
int __real_munmap(void *memory, size_t bytes);
int __real_memfd_create(const char *name, unsigned flags);
int __real_close(int fd);
int __real_open64(const char *path, int flags, ...);
int __real_openat64(int folder, const char *path, int flags, ...);
ssize_t __real_pwrite64(int fd, const void *data, size_t bytes, off_t offset);
int __real_ftruncate64(int fd, off_t bytes);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mremap(void *memory, size_t bytes, size_t new_bytes, int flags, ...);
int __wrap_munmap(void *memory, size_t bytes);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_close(int fd);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t offset);
int __wrap_ftruncate64(int fd, off_t bytes);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);

/* --- blocks --------------------------------------------------------------------------------------------------------- */

static size_t before(size_t alignment)
{
    return alignment < sizeof(sim_block) ? sizeof(sim_block) : (sizeof(sim_block) + alignment - 1) / alignment * alignment;
}

static void *allocate(size_t bytes, size_t alignment, void *arg)
{
    (void)arg;
    size_t head = before(alignment), total = head + bytes;
    char *base = alignment <= 16 ? malloc(total) : aligned_alloc(alignment, (total + alignment - 1) / alignment * alignment);
    if (!base)
        return NULL;
    sim_block *block = (sim_block *)(void *)(base + head) - 1;
    *block = (sim_block){ .bytes = bytes, .alignment = alignment };
    sim_process *process = sim.running ? sim.running->process : NULL;
    if (process && !sim.warming) {
        block->process = process;
        block->next = process->blocks.next;
        block->before = &process->blocks;
        block->next->before = block->before->next = block;
        process->n_blocks++;
    }
    return base + head;
}

static void forget_block(sim_block *block)
{
    if (!block->next)
        return;
    block->next->before = block->before;
    block->before->next = block->next;
    block->next = block->before = NULL;
}

static void release(void *memory, size_t bytes, void *arg)
{
    (void)arg;
    sim_block *block = (sim_block *)memory - 1;
    if (block->bytes != bytes)
        sim_fail("a block of %zu bytes is released as one of %zu", block->bytes, bytes);
    if (block->next)
        block->process->n_blocks--;
    forget_block(block);
    free((char *)memory - before(block->alignment));
}

void sim_memory_begin(void)
{
    static const trek_allocator allocator = { .allocate = allocate, .release = release };
    if (trek_allocator_set(&allocator) != TREK_OK) {
        fprintf(stderr, "simulation: the allocator cannot be set: %s\n", trek_error());
        exit(2);
    }
}

static void drop_blocks(sim_process *process)
{
    while (process->blocks.next != &process->blocks) {
        sim_block *block = process->blocks.next;
        forget_block(block);
        free((char *)(block + 1) - before(block->alignment));
    }
    process->n_blocks = 0;
}

/* --- mappings --------------------------------------------------------------------------------------------------------- */

/* What of a process's mappings lies in that span is no more. */
static void cut_out(sim_process *process, const char *memory, size_t bytes)
{
    for (sim_mapping **at = &process->mappings; *at;) {
        sim_mapping *m = *at;
        char *end = m->memory + m->bytes;
        if (end <= memory || m->memory >= memory + bytes) {
            at = &m->next;
            continue;
        }
        if (m->memory < memory && end > memory + bytes) { /* two are left */
            sim_mapping *behind = calloc(1, sizeof *behind);
            if (!behind)
                abort();
            *behind = *m;
            behind->memory = (char *)(uintptr_t)memory + bytes;
            behind->bytes = (size_t)(end - behind->memory);
            behind->offset = m->offset + (behind->memory - m->memory);
            m->next = behind;
            m->bytes = (size_t)(memory - m->memory);
            at = &behind->next;
        } else if (m->memory < memory) {
            m->bytes = (size_t)(memory - m->memory);
            at = &m->next;
        } else if (end > memory + bytes) {
            size_t gone = (size_t)(memory + bytes - m->memory);
            m->memory += gone;
            m->offset += (int64_t)gone;
            m->bytes -= gone;
            at = &m->next;
        } else {
            *at = m->next;
            free(m);
        }
    }
}

static void note_mapping(void *memory, size_t bytes, int flags, int fd, off_t offset)
{
    sim_process *process = sim.running->process;
    struct stat about;
    sim_mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        abort();
    bytes = (bytes + 4095) / 4096 * 4096;
    cut_out(process, memory, bytes);
    *mapping = (sim_mapping){ .memory = memory, .bytes = bytes, .offset = offset, .next = process->mappings };
    if (fd >= 0 && (flags & MAP_SHARED) && fstat(fd, &about) == 0)
        mapping->file = (uint64_t)about.st_ino;
    process->mappings = mapping;
}

void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *memory = __real_mmap64(at, bytes, protection, flags, fd, offset);
    if (sim.running && memory != MAP_FAILED)
        note_mapping(memory, bytes, flags, fd, offset);
    return memory;
}

void *__wrap_mremap(void *memory, size_t bytes, size_t new_bytes, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    void *at = flags & MREMAP_FIXED ? va_arg(arguments, void *) : NULL;
    va_end(arguments);
    void *moved = __real_mremap(memory, bytes, new_bytes, flags, at);
    if (moved != MAP_FAILED && sim.running) {
        cut_out(sim.running->process, memory, (bytes + 4095) / 4096 * 4096);
        note_mapping(moved, new_bytes, flags, -1, 0);
    }
    return moved;
}

int __wrap_munmap(void *memory, size_t bytes)
{
    if (sim.running)
        cut_out(sim.running->process, memory, (bytes + 4095) / 4096 * 4096);
    return __real_munmap(memory, bytes);
}

static const sim_mapping *mapping_of(const char *word)
{
    for (const sim_mapping *m = sim.running->process->mappings; m; m = m->next)
        if (word >= m->memory && word < m->memory + m->bytes)
            return m;
    return NULL;
}

/* Of a word of a file: the file and the place in it, as one number. */
const void *sim_word_key(const void *word, bool shared)
{
    const sim_mapping *m = shared ? mapping_of(word) : NULL;
    if (!m || !m->file)
        return word;
    uint64_t place = (uint64_t)m->offset + (uint64_t)((const char *)word - m->memory);
    return (const void *)(uintptr_t)(m->file * 0x100000000u + place);
}

/* --- files --------------------------------------------------------------------------------------------------------------- */

static int note_file(int fd)
{
    if (fd < 0 || !sim.running)
        return fd;
    int *files = sim.running->process->files;
    for (size_t k = 0; k < sizeof sim.running->process->files / sizeof *files; k++)
        if (files[k] == 0) {
            files[k] = fd + 1;
            return fd;
        }
    abort();
}

static bool is_full(void) { return sim.running && sim.now_ns < sim.disk_full_until; }

int __wrap_memfd_create(const char *name, unsigned flags)
{
    if (is_full()) {
        errno = ENOMEM;
        return -1;
    }
    return note_file(__real_memfd_create(name, flags));
}

int __wrap_open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
        if (is_full()) {
            errno = ENOSPC;
            return -1;
        }
    }
    return note_file(__real_open64(path, flags, mode));
}

/* Of a folder's file that is there. */
int __wrap_openat64(int folder, const char *path, int flags, ...) { return note_file(__real_openat64(folder, path, flags)); }

static void take_time(const char *what)
{
    sim_point(what);
    if (sim.running && sim_chance(&sim.chance, 100))
        trek_sleep_ns(sim_below(&sim.chance, 5 * SIM_MS));
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
    take_time("write");
    if (is_full()) {
        errno = ENOSPC;
        return -1;
    }
    return __real_pwrite64(fd, data, bytes, offset);
}

int __wrap_ftruncate64(int fd, off_t bytes)
{
    if (bytes > 0 && is_full()) {
        errno = ENOSPC;
        return -1;
    }
    return __real_ftruncate64(fd, bytes);
}

/* What has been written stays, as long as the system runs; a machine that loses its power is not asked for it again. */
int __wrap_fsync(int fd)
{
    (void)fd;
    take_time("sync");
    return 0;
}

int __wrap_rename(const char *from, const char *to)
{
    take_time("rename");
    return __real_rename(from, to);
}

int __wrap_close(int fd)
{
    if (sim.running) {
        int *files = sim.running->process->files, known = 0;
        for (size_t k = 0; k < sizeof sim.running->process->files / sizeof *files; k++)
            if (files[k] == fd + 1) {
                files[k] = 0;
                known = 1;
            }
        if (!known)
            sim_fail("process %d closes descriptor %d, which it does not have", sim.running->process->number, fd);
        if (!known)
            return -1;
    }
    return __real_close(fd);
}

int sim_files_open(const sim_process *process)
{
    int n = 0;
    for (size_t k = 0; k < sizeof process->files / sizeof process->files[0]; k++)
        n += process->files[k] != 0;
    return n;
}

void sim_memory_drop(sim_process *process)
{
    drop_blocks(process);
    while (process->mappings) {
        sim_mapping *m = process->mappings;
        process->mappings = m->next;
        __real_munmap(m->memory, m->bytes);
        free(m);
    }
    for (size_t k = 0; k < sizeof process->files / sizeof process->files[0]; k++)
        if (process->files[k]) {
            __real_close(process->files[k] - 1);
            process->files[k] = 0;
        }
}

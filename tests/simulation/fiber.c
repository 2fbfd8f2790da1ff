/* SPDX-License-Identifier: Apache-2.0 */
/* Switching. What a call keeps is saved on the stack; the thread's variables are swapped as one block, that of the program's
 * own segment (the libraries have theirs, which are errno and what nobody sees). */
#include "tests/simulation/fiber.h"

#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifdef WITH_ASAN
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
void __asan_unpoison_memory_region(const volatile void *address, size_t size);
#endif
#ifdef WITH_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#endif

enum { PAGE = 4096, STACK = 512 << 10 };

static fiber *current, *idle, *left, first; /* left: free as soon as another one runs */
static char *locals, *initial;              /* the program's block of this thread, and what a fiber begins with */
static size_t locals_size;

/* --- the switch itself ---------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
void fiber_swap(void **from, void *to);
__asm__(".text\n.globl fiber_swap\n.hidden fiber_swap\n.type fiber_swap,@function\nfiber_swap:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size fiber_swap,.-fiber_swap\n");

static void *prepare(char *top, void (*entry)(void))
{
    void **sp = (void **)(void *)top;
    *--sp = NULL; /* the stack is aligned as by a call */
    *--sp = (void *)(uintptr_t)entry;
    for (int k = 0; k < 6; k++)
        *--sp = NULL;
    return sp;
}
#elif defined(__aarch64__)
void fiber_swap(void **from, void *to);
__asm__(".text\n.globl fiber_swap\n.hidden fiber_swap\n.type fiber_swap,%function\nfiber_swap:\n"
        "  sub sp, sp, #160\n  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n  ret\n.size fiber_swap,.-fiber_swap\n");

static void *prepare(char *top, void (*entry)(void))
{
    void **sp = (void **)(void *)(top - 160);
    memset(sp, 0, 160);
    sp[11] = (void *)(uintptr_t)entry;
    return sp;
}
#else
#include <ucontext.h>
static void fiber_swap(void **from, void *to)
{
    ucontext_t own;
    *from = &own; /* lies on the stack that is left, as long as it is needed */
    swapcontext(&own, to);
}

static void *prepare(char *top, void (*entry)(void))
{
    ucontext_t *context = (ucontext_t *)(void *)(top - (sizeof *context + 63) / 64 * 64);
    getcontext(context);
    context->uc_stack.ss_sp = top - STACK;
    context->uc_stack.ss_size = (size_t)((char *)context - (top - STACK));
    makecontext(context, entry, 0);
    return context;
}
#endif

/* --- variables of a thread ------------------------------------------------------------------------------------------- */

static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    for (int k = 0; k < info->dlpi_phnum; k++) /* the program comes first */
        if (info->dlpi_phdr[k].p_type == PT_TLS) {
            locals = info->dlpi_tls_data;
            locals_size = info->dlpi_phdr[k].p_memsz;
        }
    return 1;
}

size_t fiber_locals_size(void) { return locals_size; }

fiber *fiber_begin(void)
{
    if (current)
        return current;
    dl_iterate_phdr(find_program, NULL);
    initial = malloc(locals_size + 1);
    first.locals = malloc(locals_size + 1);
    if (!initial || !first.locals || !locals) {
        fprintf(stderr, "fibers: the program's thread-local variables are not found\n");
        exit(2);
    }
    memcpy(initial, locals, locals_size);
#ifdef WITH_TSAN
    first.shadow = __tsan_get_current_fiber();
#endif
    return current = &first;
}

static void leave(fiber *to)
{
    fiber *from = current;
    from->error = errno;
    memcpy(from->locals, locals, locals_size);
    memcpy(locals, to->locals, locals_size);
    current = to;
}

/* --- fibers ------------------------------------------------------------------------------------------------------------ */

static fiber *came_from;

static void arrive(void)
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(current->fake, &came_from->bottom, &came_from->size);
#endif
    errno = current->error;
    if (left) {
        left->next = idle;
        idle = left;
        left = NULL;
    }
}

static void enter(void)
{
    arrive();
    current->run(current->arg);
    abort();
}

fiber *fiber_new(void (*run)(void *arg), void *arg)
{
    fiber *f = idle;
    if (f) {
        idle = f->next;
    } else {
        f = calloc(1, sizeof *f);
        char *space = aligned_alloc(PAGE, STACK + PAGE); /* not by mmap, which belongs to the simulated process that asks */
        if (!f || !space || !(f->locals = malloc(locals_size + 1)) || mprotect(space, PAGE, PROT_NONE) != 0) {
            fprintf(stderr, "fibers: no memory for a stack\n");
            exit(2);
        }
        f->stack = space + PAGE;
    }
#ifdef WITH_ASAN
    __asan_unpoison_memory_region(f->stack, STACK);
#endif
#ifdef WITH_TSAN
    f->shadow = __tsan_create_fiber(0);
#endif
    f->run = run;
    f->arg = arg;
    f->error = 0;
    f->fake = NULL;
    f->bottom = f->stack;
    f->size = STACK;
    f->sp = prepare(f->stack + STACK, enter);
    memcpy(f->locals, initial, locals_size);
    return f;
}

void fiber_free(fiber *f)
{
#ifdef WITH_TSAN
    if (f != current)
        __tsan_destroy_fiber(f->shadow);
#endif
    if (f == current) {
        left = f;
        return;
    }
    f->next = idle;
    idle = f;
}

void fiber_switch(fiber *to)
{
    fiber *from = current;
    if (to == from)
        return;
    leave(to);
    came_from = from;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(to->shadow, 0);
#endif
    fiber_swap(&from->sp, to->sp);
    arrive();
}

void fiber_call(fiber *other, void (*fn)(void))
{
    if (other == current) {
        fn();
        return;
    }
    fiber *own = current;
    leave(other);
    fn();
    leave(own);
    errno = own->error;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Switching stacks: a dozen instructions on x86-64 and AArch64, ucontext elsewhere,
 * with what ASan and TSan must be told. */
#include "fake_fiber.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#if defined(__x86_64__)
/* The registers that calls keep go on the stack; the stack pointer is the context. */
__asm__(".text\n"
        ".globl trek_fake_switch\n"
        ".hidden trek_fake_switch\n"
        ".type trek_fake_switch, @function\n"
        "trek_fake_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size trek_fake_switch, . - trek_fake_switch\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl trek_fake_switch\n"
        ".hidden trek_fake_switch\n"
        ".type trek_fake_switch, %function\n"
        "trek_fake_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size trek_fake_switch, . - trek_fake_switch\n");
#endif

namespace fake {

/* Stacks begin at different places of their pages, or all would contend for the same lines of the cache. */
enum { STACK = 256 << 10, LINE = 64, PLACES = 61 };

__thread __attribute__((tls_model("initial-exec"))) Fiber *starting;
__thread __attribute__((tls_model("initial-exec"))) bool racing;

#if defined(__x86_64__) || defined(__aarch64__)
void Context::make(char *stack, size_t size)
{
    uintptr_t top = ((uintptr_t)stack + size) & ~(uintptr_t)15;
#if defined(__x86_64__)
    void **at = (void **)(top - 64);
    memset(at, 0, 64);
    at[6] = (void *)Fiber::begin; /* six registers, then where `ret` goes */
#else
    void **at = (void **)(top - 160);
    memset(at, 0, 160);
    at[11] = (void *)Fiber::begin; /* x30 */
#endif
    sp = at;
}
#else
void Context::make(char *stack, size_t size)
{
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, Fiber::begin, 0);
}
#endif

/* Where the calling thread left its own stack. */
struct Outer {
    Context context;
    bool left = false; /* just now: whoever arrives comes from it */
    void *asan = nullptr, *tsan = nullptr;
    void *tsan_all = nullptr; /* what TSan sees instead of this thread's fibers, if they cannot race */
    const void *stack = nullptr;
    size_t size = 0;
    ~Outer() { forget(); }
    void forget();
};

void Outer::forget()
{
#if defined(FIBERS_TSAN)
    if (tsan_all)
        __tsan_destroy_fiber(tsan_all);
#endif
    tsan_all = nullptr;
}

static Outer &outer()
{
    static thread_local Outer o;
    return o;
}

void Fiber::let_race(bool yes) { racing = yes && races_show; }
void Fiber::forget() { outer().forget(); }

#if defined(FIBERS_TSAN)
void order_before(void *meeting)
{
    if (racing)
        __tsan_release(meeting);
}

void order_after(void *meeting)
{
    if (racing)
        __tsan_acquire(meeting);
}
#endif

Fiber::Fiber(void (*run)(void *), void *argument) : run_(run), argument_(argument)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *mapped = mmap(nullptr, STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return;
    mapped_ = (char *)mapped;
    mprotect(mapped_, page, PROT_NONE); /* too deep a stack faults */
    stack_ = mapped_ + page;
    static std::atomic<unsigned> made{0};
    own_.make(stack_, STACK - made.fetch_add(1, std::memory_order_relaxed) % PLACES * LINE);
#if defined(FIBERS_TSAN)
    if (racing)
        tsan_own_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber()
{
    if (!mapped_)
        return;
#if defined(FIBERS_TSAN)
    if (tsan_own_)
        __tsan_destroy_fiber(tsan_own_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_, STACK); /* red zones of locals that were left behind */
#endif
    munmap(mapped_, (size_t)(stack_ - mapped_) + STACK);
}

/* The first thing on this fiber's stack after a switch to it. */
#if defined(__SANITIZE_ADDRESS__)
void Fiber::arrived()
{
    const void *stack;
    size_t size;
    __sanitizer_finish_switch_fiber(asan_own_, &stack, &size);
    Outer &o = outer();
    if (o.left) {
        o.stack = stack;
        o.size = size;
    }
    o.left = false;
}
#endif

size_t Fiber::stack_size() { return STACK; }

void Fiber::begin()
{
    Fiber *self = starting;
    self->arrived();
    self->run_(self->argument_);
    __builtin_trap();
}

void Fiber::enter()
{
    Outer &o = outer();
    o.left = true;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&o.asan, stack_, STACK);
#endif
#if defined(FIBERS_TSAN)
    o.tsan = __tsan_get_current_fiber();
    if (!racing) {
        if (!o.tsan_all)
            o.tsan_all = __tsan_create_fiber(0);
        __tsan_switch_to_fiber(o.tsan_all, ORDERED);
    }
#endif
    go(o.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(o.asan, nullptr, nullptr);
#endif
}

void Fiber::leave()
{
    Outer &o = outer();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&asan_own_, o.stack, o.size);
#endif
#if defined(FIBERS_TSAN)
    __tsan_switch_to_fiber(o.tsan, racing ? UNORDERED : ORDERED);
#endif
    own_.go(&o.context);
    arrived();
}

} // namespace fake

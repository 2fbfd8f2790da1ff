/* SPDX-License-Identifier: Apache-2.0 */
/* A function with a stack of its own, to be entered and left at will by one thread. */
#ifndef TREK_FAKE_FIBER_H
#define TREK_FAKE_FIBER_H

#include <cstddef>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__) || defined(TREK_SHIM_TSAN)
#define FIBERS_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

namespace fake {

/* Where a switch left off. */
#if defined(__x86_64__) || defined(__aarch64__)
extern "C" __attribute__((visibility("hidden"))) void trek_fake_switch(void **from, void *to);
struct Context {
    void *sp = nullptr;
    void go(Context *to) { trek_fake_switch(&sp, to->sp); }
    void make(char *stack, size_t size);
};
#else
struct Context {
    ucontext_t context;
    void go(Context *to) { swapcontext(&context, &to->context); }
    void make(char *stack, size_t size);
};
#endif

class Fiber {
public:
    /* `run` is called on the new stack at the first enter(); it must not return. */
    Fiber(void (*run)(void *), void *argument);
    ~Fiber();
    Fiber(const Fiber &) = delete;
    Fiber &operator=(const Fiber &) = delete;
    bool good() const { return stack_ != nullptr; } /* there was memory for the stack */
    void enter();          /* from the thread's own stack; comes back at the leave() of whichever fiber runs then */
    void leave();          /* from within, to the thread's own stack */
    void pass(Fiber &to);  /* from within, to another: comes back when one passes to this, or it is entered */
    /* TSan sees each fiber of the calling thread as one of its own, and races among them. Otherwise it sees all as one: it would
     * see no race among them anyway, and each switch would take as long as there are fibers. */
    static void let_race(bool yes);
    static bool may_race();
    /* Fibers that were left somewhere are not entered again: TSan's one for all of them knows their calls. */
    static void forget();
    static void begin(); /* what a new stack starts with */

private:
    void go(Context &from);
    void arrived();
    void (*run_)(void *);
    void *argument_;
    static size_t stack_size();
    char *mapped_ = nullptr, *stack_ = nullptr;
    Context own_;
    /* of the sanitizers: ASan's stack of locals, TSan's fiber */
    [[maybe_unused]] void *asan_own_ = nullptr, *tsan_own_ = nullptr;
};

/* The one that is entered or passed to, and whether TSan is to see races among fibers. */
extern __thread __attribute__((tls_model("initial-exec"), visibility("hidden"))) Fiber *starting;
extern __thread __attribute__((tls_model("initial-exec"), visibility("hidden"))) bool racing;

#if defined(FIBERS_TSAN)
enum { ORDERED = 0, UNORDERED = 1 }; /* what a switch is to TSan */
#endif

/* Switches to this fiber. */
inline void Fiber::go(Context &from)
{
    starting = this;
#if defined(FIBERS_TSAN)
    if (racing)
        __tsan_switch_to_fiber(tsan_own_, UNORDERED);
#endif
    from.go(&own_);
}

#if !defined(__SANITIZE_ADDRESS__)
inline void Fiber::arrived() {}
#endif

/* Here, for where it is called: the most frequent thing that a block does. */
inline void Fiber::pass(Fiber &to)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&asan_own_, to.stack_, to.stack_size());
#endif
    to.go(own_);
    arrived();
}

/* Whether TSan looks at kernels, and this file is not looked at itself. */
#if defined(TREK_SHIM_TSAN)
constexpr bool races_show = true;
#else
constexpr bool races_show = false;
#endif
inline bool Fiber::may_race() { return races_show && racing; }
/* What has happened before the one is seen after the other, for TSan, where it sees each fiber as one of its own. */
#if defined(__SANITIZE_THREAD__) || defined(TREK_SHIM_TSAN)
void order_before(void *meeting);
void order_after(void *meeting);
#else
static inline void order_before(void *) {}
static inline void order_after(void *) {}
#endif

} // namespace fake

#endif

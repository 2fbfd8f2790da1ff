/* SPDX-License-Identifier: Apache-2.0 */
/* A function with a stack of its own, to be entered and left at will by one thread. */
#ifndef TREK_FAKE_FIBER_H
#define TREK_FAKE_FIBER_H

#include <cstddef>
#include <memory>

namespace fake {

struct Context; /* where a switch left off */

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
    /* TSan takes switches as no order among fibers, so that it sees races among them. */
    static void let_race(bool yes);

private:
    static void begin(Fiber *self);
    void go(Context &from);
    void arrived();
    friend struct Context;
    void (*run_)(void *);
    void *argument_;
    char *mapped_ = nullptr, *stack_ = nullptr;
    std::unique_ptr<Context> own_;
    /* of the sanitizers: ASan's stack of locals, TSan's fiber */
    [[maybe_unused]] void *asan_own_ = nullptr, *tsan_own_ = nullptr;
};

/* Whether TSan looks at kernels, and this file is not looked at itself. */
#if defined(TREK_SHIM_TSAN)
constexpr bool races_show = true;
#else
constexpr bool races_show = false;
#endif
/* What has happened before the one is seen after the other, for TSan. */
#if defined(__SANITIZE_THREAD__) || defined(TREK_SHIM_TSAN)
void order_before(void *meeting);
void order_after(void *meeting);
#else
static inline void order_before(void *) {}
static inline void order_after(void *) {}
#endif

} // namespace fake

#endif

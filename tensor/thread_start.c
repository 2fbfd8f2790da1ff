/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/thread_start.h"

#include <signal.h>

#include "tensor/cores.h"

int trek_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    int failed = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (failed)
        return failed;
    pthread_attr_t attributes;
    bool made = pthread_attr_init(&attributes) == 0;
    failed = pthread_create(thread, made && trek_pin_release(&attributes) ? &attributes : NULL, run, arg);
    if (made)
        pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the library at run time, after one that took most of the static TLS; computes on two threads; closes it while
 * a thread that used it is still there.
 *   usage: load_late libtrek.so filler.so */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"

static struct {
    trek_scope (*begin)(void);
    trek_status (*end)(trek_scope);
    trek_tensor *(*full)(double, trek_shape, trek_dtype, trek_device);
    trek_var *(*from)(trek_tensor *);
    trek_var *(*add)(trek_var *, trek_var *);
    double (*item)(const trek_var *);
    const char *(*error)(void);
} trek;

static void *library;
static pthread_barrier_t used, closed;

static int find(const char *name, void *function)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    if (!address)
        printf("%s is missing\n", name);
    return !address;
}

static int find_all(void)
{
    return find("trek_scope_begin", &trek.begin) || find("trek_scope_end", &trek.end) || find("trek_tensor_full", &trek.full) ||
           find("trek_var_from", &trek.from) || find("trek_add", &trek.add) || find("trek_var_item", &trek.item) ||
           find("trek_error", &trek.error);
}

static void *compute(void *wrong)
{
    trek_scope scope = trek.begin();
    trek_device cpu = { TREK_CPU, 0 };
    trek_shape none = { 0 };
    trek_var *x = trek.from(trek.full(20, none, TREK_F32, cpu));
    *(int *)wrong = trek.item(trek.add(x, x)) != 40;
    trek.add(x, NULL); /* an error, whose text belongs to the thread */
    *(int *)wrong |= trek.error()[0] == '\0';
    trek.end(scope);
    return NULL;
}

static void *compute_and_wait(void *wrong)
{
    compute(wrong);
    pthread_barrier_wait(&used);
    pthread_barrier_wait(&closed);
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    int wrong = 1, wrong_there = 1;
    if (count != 3 || !dlopen(arguments[2], RTLD_NOW | RTLD_GLOBAL))
        return printf("no filler: %s\n", count == 3 ? dlerror() : "usage: load_late libtrek.so filler.so"), 1;
    library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return printf("%s\n", dlerror()), 1;
    if (find_all())
        return 1;
    compute(&wrong);
    pthread_barrier_init(&used, NULL, 2);
    pthread_barrier_init(&closed, NULL, 2);
    pthread_create(&thread, NULL, compute_and_wait, &wrong_there);
    pthread_barrier_wait(&used);
    dlclose(library);
    pthread_barrier_wait(&closed);
    pthread_join(thread, NULL);
    if (wrong || wrong_there)
        printf("wrong results\n");
    return wrong || wrong_there;
}

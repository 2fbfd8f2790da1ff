/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/late.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/status_internal.h"

const char *trek_late_named(const char *name)
{
    const char *text = secure_getenv(name);
    return text && *text ? text : NULL;
}

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void keep_reason(trek_late *late, const char *file, const char *problem)
{
    if (!late->why[0])
        snprintf(late->why, sizeof late->why, "%.60s: %.130s", file, problem ? problem : "it cannot be opened");
}

static bool find_all(trek_late *late, const char *file, void *library)
{
    for (int k = 0; k < late->n; k++) {
        void *address = dlsym(library, late->names[k]);
        if (!address) {
            char problem[120];
            snprintf(problem, sizeof problem, "it has no %.90s", late->names[k]);
            keep_reason(late, file, problem);
            return false;
        }
        memcpy((char *)late->functions + (size_t)k * sizeof address, &address, sizeof address);
    }
    return true;
}

static bool open_file(trek_late *late, const char *file)
{
    bool valid = trek_late_name_valid(file);
    void *library = valid ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library)
        keep_reason(late, file, valid ? dlerror() : TREK_LATE_RELATIVE);
    bool usable = library && find_all(late, file, library);
    if (library && !usable)
        dlclose(library);
    return usable;
}

static bool open_any(trek_late *late)
{
    const char *given = late->variable ? trek_late_named(late->variable) : NULL;
    if (given)
        return open_file(late, given);
    for (int k = 0; k < 3 && late->files[k]; k++)
        if (open_file(late, late->files[k]))
            return true;
    return false;
}

bool trek_late_there(trek_late *late, const char *what)
{
    if (atomic_load_explicit(&late->state, memory_order_acquire) == 0) {
        pthread_mutex_lock(&opening);
        if (atomic_load(&late->state) == 0)
            atomic_store_explicit(&late->state, open_any(late) ? 1 : -1, memory_order_release);
        pthread_mutex_unlock(&opening);
    }
    if (atomic_load(&late->state) > 0)
        return true;
    trek_fail(TREK_ERR_UNSUPPORTED, "%s: it needs %s%s%s (%s)", what, late->package,
              late->variable ? ", or a file named in " : "", late->variable ? late->variable : "", late->why);
    return false;
}

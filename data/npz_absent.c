/* SPDX-License-Identifier: Apache-2.0 */
/* The functions for archives where zlib is missing. */
#include "data/npy_internal.h"

static trek_status absent(const char *path)
{
    return trek_fail(TREK_ERR_UNSUPPORTED, "%s: this library was built without zlib", path ? path : "npz");
}

trek_npz *trek_npz_open(const char *path)
{
    absent(path);
    return NULL;
}

void trek_npz_close(trek_npz **npz) { (void)npz; }

int trek_npz_count(const trek_npz *npz)
{
    (void)npz;
    absent(NULL);
    return -1;
}

const char *trek_npz_name(const trek_npz *npz, int k)
{
    (void)npz;
    (void)k;
    return NULL;
}

trek_tensor *trek_npz_read(trek_npz *npz, const char *name)
{
    (void)npz;
    absent(name);
    return NULL;
}

trek_status trek_npz_write(const char *path, const char *const *names, trek_tensor *const *tensors, int n, bool compress)
{
    (void)names;
    (void)tensors;
    (void)n;
    (void)compress;
    return absent(path);
}

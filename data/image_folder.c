/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of images for each class. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "data/idx_internal.h"
#include "data/image_internal.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"

enum { MOST_DEPTH = 32 }; /* nesting of folders, since a link may lead back */

typedef struct names {
    char **list;
    int n, capacity;
} names;

typedef struct image_folder {
    trek_dataset base;
    trek_image_read_opts opts;
    names classes, paths;
    int *labels; /* of the paths */
    int labels_capacity;
} image_folder;

static void names_free(names *names)
{
    for (int k = 0; k < names->n; k++)
        trek_free(names->list[k]);
    trek_free(names->list);
    memset(names, 0, sizeof *names);
}

/* Takes ownership of the name. */
static trek_status names_add(names *names, char *name)
{
    if (name && trek_array_grow(&names->list, &names->capacity, names->n + 1, sizeof *names->list) == TREK_OK) {
        names->list[names->n++] = name;
        return TREK_OK;
    }
    trek_free(name);
    return TREK_ERR_MEMORY;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void names_sort(names *names)
{
    if (names->n > 1)
        qsort(names->list, (size_t)names->n, sizeof *names->list, by_bytes);
}

static bool is_image(const char *name)
{
    const char *end = strrchr(name, '.');
    return end && (strcasecmp(end, ".png") == 0 || strcasecmp(end, ".jpg") == 0 || strcasecmp(end, ".jpeg") == 0);
}

/* Lists the folders or the images in a folder, as names or paths, in no particular order. */
static trek_status list_folder(const char *folder, bool folders, bool paths, names *found)
{
    DIR *open = opendir(folder);
    if (!open)
        return trek_fail(TREK_ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    trek_status status = TREK_OK;
    for (struct dirent *entry; status == TREK_OK && (entry = readdir(open));) {
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || (!folders && !is_image(entry->d_name)))
            continue;
        char *path = trek_path_join(folder, entry->d_name);
        bool right = path && stat(path, &info) == 0 && (folders ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode));
        if (!path)
            status = TREK_ERR_MEMORY;
        else if (right)
            status = names_add(found, paths ? trek_strdup(path) : trek_strdup(entry->d_name));
        trek_free(path);
    }
    closedir(open);
    return status;
}

/* Lists the folder and all folders inside it. */
static trek_status list_deep(const char *folder, names *all, int depth)
{
    if (depth > MOST_DEPTH)
        return trek_fail(TREK_ERR_FORMAT, "%s: more than %d nested folders; must be fewer", folder, MOST_DEPTH);
    names inside = { 0 };
    trek_status status = list_folder(folder, true, true, &inside);
    if (status == TREK_OK)
        status = names_add(all, trek_strdup(folder));
    for (int k = 0; k < inside.n && status == TREK_OK; k++)
        status = list_deep(inside.list[k], all, depth + 1);
    names_free(&inside);
    return status;
}

static trek_status add_class(image_folder *set, const char *path, int label)
{
    names folders = { 0 }, files = { 0 };
    int before = set->paths.n;
    trek_status status = list_deep(path, &folders, 0);
    names_sort(&folders);
    for (int k = 0; k < folders.n && status == TREK_OK; k++) {
        status = list_folder(folders.list[k], false, true, &files);
        names_sort(&files);
        for (int f = 0; f < files.n && status == TREK_OK; f++) {
            status = trek_array_grow(&set->labels, &set->labels_capacity, set->paths.n + 1, sizeof *set->labels);
            if (status == TREK_OK)
                set->labels[set->paths.n] = label;
            if (status == TREK_OK)
                status = names_add(&set->paths, files.list[f]);
            files.list[f] = NULL;
        }
        names_free(&files);
    }
    names_free(&folders);
    if (status == TREK_OK && set->paths.n == before)
        return trek_fail(TREK_ERR_FORMAT, "%s: there is no image (.png, .jpg, .jpeg) of this class", path);
    return status;
}

static trek_status scan(image_folder *set, const char *folder)
{
    trek_status status = list_folder(folder, true, false, &set->classes);
    names_sort(&set->classes);
    if (status == TREK_OK && set->classes.n == 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: there are no folders of classes in it", folder);
    for (int k = 0; k < set->classes.n && status == TREK_OK; k++) {
        char *path = trek_path_join(folder, set->classes.list[k]);
        status = path ? add_class(set, path, k) : TREK_ERR_MEMORY;
        trek_free(path);
    }
    return status;
}

static int64_t folder_length(const trek_dataset *self) { return ((const image_folder *)self)->paths.n; }

/* Puts image i into the batch, which the first image makes. */
static trek_status put_image(const image_folder *set, const trek_fetch *fetch, int64_t i, trek_tensor **batch)
{
    const char *path = set->paths.list[fetch->indices[i]];
    trek_tensor *image = trek_image_read(path, &set->opts);
    if (!image)
        return trek_status_or(TREK_ERR_MEMORY);
    trek_shape shape = trek_tensor_shape(image);
    trek_status status = TREK_OK;
    if (i == 0)
        *batch = fetch->n == 1 ? trek_tensor_view(image, trek_dims(1, shape.sizes[0], shape.sizes[1], shape.sizes[2]))
                               : trek_dataset_tensor(fetch->n, shape, TREK_U8);
    trek_shape whole = *batch ? trek_tensor_shape(*batch) : trek_dims_none();
    if (!*batch)
        status = trek_status_or(TREK_ERR_MEMORY);
    else if (whole.sizes[2] != shape.sizes[1] || whole.sizes[3] != shape.sizes[2])
        status =
            trek_fail(TREK_ERR_SHAPE,
                      "dataset image_folder: %s is of %" PRId64 " x %" PRId64 ", and %s of %" PRId64 " x %" PRId64
                      "; trek_dataset_transform can give them one size",
                      set->paths.list[fetch->indices[0]], whole.sizes[2], whole.sizes[3], path, shape.sizes[1], shape.sizes[2]);
    else if (fetch->n > 1)
        memcpy((char *)trek_tensor_data(*batch) + i * trek_shape_numel(shape), trek_tensor_data(image),
               (size_t)trek_shape_numel(shape));
    trek_tensor_release(image);
    return status;
}

static trek_status folder_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const image_folder *set = (const image_folder *)self;
    out[1] = trek_dataset_tensor(fetch->n, trek_dims_none(), TREK_I64);
    if (!out[1])
        return trek_status_or(TREK_ERR_MEMORY);
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < fetch->n && status == TREK_OK; i++) {
        ((int64_t *)trek_tensor_data(out[1]))[i] = set->labels[fetch->indices[i]];
        status = put_image(set, fetch, i, &out[0]);
    }
    return status;
}

static void folder_free(trek_dataset *self)
{
    image_folder *set = (image_folder *)self;
    names_free(&set->classes);
    names_free(&set->paths);
    trek_free(set->labels);
}

static const trek_dataset_class folder_class = {
    .name = "image_folder", .size = sizeof(image_folder), .length = folder_length, .get = folder_get, .free = folder_free,
    .n_fields = 2, .fields = trek_image_fields,
};

trek_dataset *trek_dataset_image_folder(const char *folder, const trek_image_read_opts *opts)
{
    if (!folder) {
        trek_fail_missing("dataset_image_folder", "folder");
        return NULL;
    }
    trek_dataset *set = trek_dataset_new(&folder_class);
    if (set && opts)
        ((image_folder *)set)->opts = *opts;
    if (set && scan((image_folder *)set, folder) != TREK_OK)
        trek_dataset_free(&set);
    return set;
}

static const image_folder *folder_of(const trek_dataset *dataset, const char *function)
{
    const trek_dataset *root = trek_dataset_root(dataset);
    if (!dataset)
        trek_fail_missing(function, "dataset");
    else if (root->klass != &folder_class)
        trek_fail(TREK_ERR_ARGUMENT, "%s: dataset: %s; must be an image_folder", function, root->klass->name);
    return root && root->klass == &folder_class ? (const image_folder *)root : NULL;
}

const char *const *trek_image_folder_classes(const trek_dataset *dataset, int *n)
{
    const image_folder *set = folder_of(dataset, "image_folder_classes");
    if (set && n)
        *n = set->classes.n;
    return set ? (const char *const *)set->classes.list : NULL;
}

const char *trek_image_folder_path(const trek_dataset *dataset, int64_t index)
{
    const image_folder *set = folder_of(dataset, "image_folder_path");
    if (set && &set->base != dataset)
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "image_folder_path: dataset: %s, whose samples may have other numbers; must be the image_folder itself",
            dataset->klass->name);
    if (set && (index < 0 || index >= set->paths.n))
        return trek_fail_null(TREK_ERR_ARGUMENT, "image_folder_path: index: %" PRId64 "; there are %d samples", index,
                              set->paths.n);
    return set ? set->paths.list[index] : NULL;
}

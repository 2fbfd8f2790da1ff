/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of a replica, and its train and freeze flags. */
#include "distributed/team/replica.h"

#include "autograd/var_internal.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/memory_internal.h"

typedef struct listing {
    trek_replica *replica;
    bool counting;
} listing;

static trek_status list_module(const char *name, trek_module *module, void *arg)
{
    (void)name;
    const listing *l = arg;
    if (!l->counting)
        l->replica->modules[l->replica->n_modules] = module;
    l->replica->n_modules++;
    l->replica->meets |= module->own->klass->meets_ranks;
    return TREK_OK;
}

static trek_status list_var(trek_var **vars, char **names, int k, const char *name, trek_var *var)
{
    if (!(names[k] = trek_strdup(name)))
        return TREK_ERR_MEMORY;
    vars[k] = trek_var_retain(var);
    return TREK_OK;
}

static trek_status list_param(const char *name, trek_var *param, void *arg)
{
    const listing *l = arg;
    trek_replica *r = l->replica;
    trek_status status = l->counting ? TREK_OK : list_var(r->params, r->param_names, r->n_params, name, param);
    r->n_params += status == TREK_OK;
    return status;
}

static trek_status list_buffer(const char *name, trek_var *buffer, void *arg)
{
    const listing *l = arg;
    trek_replica *r = l->replica;
    trek_status status = l->counting ? TREK_OK : list_var(r->buffers, r->buffer_names, r->n_buffers, name, buffer);
    r->n_buffers += status == TREK_OK;
    return status;
}

static trek_status walk(trek_replica *r, bool counting)
{
    listing l = { r, counting };
    r->n_modules = r->n_params = r->n_buffers = 0;
    trek_status status = trek_module_each(r->module, list_module, &l);
    if (status == TREK_OK)
        status = trek_module_each_param(r->module, list_param, &l);
    if (status == TREK_OK)
        status = trek_module_each_buffer(r->module, list_buffer, &l);
    return status;
}

static trek_status list(trek_replica *r)
{
    trek_status status = walk(r, true);
    size_t modules = (size_t)r->n_modules, params = (size_t)r->n_params, buffers = (size_t)r->n_buffers;
    r->n_modules = r->n_params = r->n_buffers = 0;
    if (status != TREK_OK)
        return status;
    r->modules = trek_calloc(modules, sizeof *r->modules);
    r->params = trek_calloc(params, sizeof *r->params);
    r->buffers = trek_calloc(buffers, sizeof *r->buffers);
    r->param_names = trek_calloc(params, sizeof *r->param_names);
    r->buffer_names = trek_calloc(buffers, sizeof *r->buffer_names);
    r->plans = trek_calloc(buffers, sizeof *r->plans);
    if (!r->modules || !r->params || !r->buffers || !r->param_names || !r->buffer_names || !r->plans)
        return trek_error_status();
    return walk(r, false);
}

trek_replica *trek_replica_new(trek_module *module)
{
    trek_replica *r = trek_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    atomic_init(&r->refs, 1);
    r->module = module;
    if (list(r) == TREK_OK) {
        trek_buffers_plan(r);
        return r;
    }
    trek_replica_release(r);
    return NULL;
}

trek_replica *trek_replica_retain(trek_replica *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void trek_replica_release(trek_replica *r)
{
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) > 1)
        return;
    for (int k = 0; k < r->n_params; k++) {
        trek_var_release(r->params[k]);
        trek_free(r->param_names[k]);
    }
    for (int k = 0; k < r->n_buffers; k++) {
        trek_var_release(r->buffers[k]);
        trek_free(r->buffer_names[k]);
    }
    trek_free(r->modules);
    trek_free(r->params);
    trek_free(r->buffers);
    trek_free(r->param_names);
    trek_free(r->buffer_names);
    trek_free(r->plans);
    trek_free(r->parcel);
    trek_free(r->room);
    trek_free(r);
}

static trek_status see_device(const char *name, trek_var *var, void *device)
{
    (void)name;
    *(trek_device *)device = trek_var_device(var);
    return TREK_ERR_CANCELLED; /* the first one is enough */
}

trek_status trek_replica_device(trek_module *module, trek_device *device)
{
    trek_status status = trek_module_each_param(module, see_device, device);
    if (status == TREK_OK)
        status = trek_module_each_buffer(module, see_device, device);
    return status == TREK_ERR_CANCELLED ? TREK_OK : status;
}

/* Flags are only written if they differ, so that other ranks' memory stays in their caches. */
void trek_replica_bind(const trek_replica *r, const trek_rank_collectives *ranks)
{
    for (int k = 0; k < r->n_modules; k++)
        if (r->modules[k]->own->klass->meet)
            r->modules[k]->own->klass->meet(r->modules[k], ranks);
}

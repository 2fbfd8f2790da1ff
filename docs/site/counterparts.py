#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's counterpart of each function, which the reference shows with it.

The first rule that knows a function answers:
  1. OTHERS names the counterpart, and NONE the functions that have none.
  2. SAME lists functions that have the same name in a module of PyTorch.
  3. A function `trek_x_with` is `trek_x` with options, and has its counterpart.
  4. trek_nn_max_pool2d is torch.nn.MaxPool2d, trek_init_x is torch.nn.init.x_, and trek_transform_x is a class of
     torchvision.transforms.v2.
  5. Any other function of a header in autograd/ is torch.x.

tests/checks/check_counterparts.py checks that every op, loss, layer, initialiser, optimizer and schedule is answered for.

Usage: counterparts.py <source root>   asks an installed PyTorch whether each counterpart exists (and torchvision and
tensorboard, if they are installed)
"""
import pathlib
import re
import sys

SAME = {
    "torch.nn.functional":
        "trek_relu trek_gelu trek_silu trek_softplus trek_leaky_relu trek_elu trek_softmax trek_log_softmax trek_one_hot trek_linear "
        "trek_bilinear trek_conv1d trek_conv2d trek_conv3d trek_conv_transpose1d trek_conv_transpose2d trek_conv_transpose3d "
        "trek_max_pool1d trek_max_pool2d trek_max_pool3d trek_avg_pool1d trek_avg_pool2d trek_avg_pool3d trek_adaptive_avg_pool1d "
        "trek_adaptive_avg_pool2d trek_adaptive_avg_pool3d trek_adaptive_max_pool1d trek_adaptive_max_pool2d "
        "trek_adaptive_max_pool3d trek_max_unpool1d trek_max_unpool2d trek_max_unpool3d trek_lp_pool1d trek_lp_pool2d trek_lp_pool3d "
        "trek_fractional_max_pool2d trek_fractional_max_pool3d trek_layer_norm trek_rms_norm trek_batch_norm trek_group_norm "
        "trek_instance_norm trek_local_response_norm trek_normalize trek_dropout trek_dropout1d trek_dropout2d trek_dropout3d "
        "trek_alpha_dropout trek_feature_alpha_dropout trek_embedding trek_embedding_bag trek_pad trek_pixel_shuffle "
        "trek_pixel_unshuffle trek_interpolate trek_grid_sample trek_affine_grid trek_unfold trek_fold trek_relu6 "
        "trek_hardtanh trek_hardsigmoid trek_hardswish trek_hardshrink trek_softshrink trek_tanhshrink trek_threshold trek_softsign "
        "trek_logsigmoid trek_mish trek_selu trek_celu trek_softmin trek_prelu trek_rrelu trek_glu trek_cross_entropy trek_nll_loss "
        "trek_mse_loss trek_l1_loss trek_smooth_l1_loss trek_huber_loss trek_soft_margin_loss trek_poisson_nll_loss "
        "trek_gaussian_nll_loss trek_kl_div trek_cosine_similarity trek_pairwise_distance trek_cosine_embedding_loss "
        "trek_margin_ranking_loss trek_hinge_embedding_loss trek_triplet_margin_loss trek_multi_margin_loss "
        "trek_multilabel_soft_margin_loss trek_multilabel_margin_loss trek_ctc_loss trek_pdist",
    "torch.linalg":
        "trek_cross trek_solve trek_inv trek_solve_triangular trek_cholesky trek_qr trek_lu trek_svdvals trek_eigh trek_eigvalsh "
        "trek_det trek_slogdet trek_matrix_norm trek_pinv trek_lstsq trek_matrix_rank trek_matrix_exp trek_matrix_power",
    "torch.fft":
        "trek_fft trek_ifft trek_rfft trek_irfft trek_fft2 trek_ifft2 trek_rfft2 trek_irfft2 trek_fftn trek_ifftn trek_rfftn "
        "trek_irfftn trek_hfft trek_ihfft trek_fftshift trek_ifftshift trek_fftfreq trek_rfftfreq",
    "torch.special": "trek_entr trek_xlog1py trek_ndtr trek_log_ndtr trek_i0e trek_i1 trek_i1e",
    "torch.Tensor": "trek_expand trek_contiguous trek_repeat trek_add_ trek_sub_ trek_mul_ trek_div_ trek_fill_ trek_copy_",
    "torch.nn.utils": "trek_parameters_to_vector trek_vector_to_parameters",
    "torch.nn.utils.parametrizations": "trek_weight_norm trek_spectral_norm",
    "torch.nn.utils.parametrize": "trek_is_parametrized",
    "torch.autograd": "trek_grad trek_gradcheck",
}

OTHERS = {
    "trek_total_norm": "torch.nn.utils.get_total_norm",
    # Ops: another name in PyTorch, or another form of the arguments.
    "trek_gelu_tanh": 'torch.nn.functional.gelu(approximate="tanh")',
    "trek_add_scalar": "`torch.add` with a number",
    "trek_sub_scalar": "`torch.sub` with a number",
    "trek_mul_scalar": "`torch.mul` with a number",
    "trek_div_scalar": "`torch.div` with a number",
    "trek_pow_scalar": "`torch.pow` with a number",
    "trek_eq_scalar": "`torch.eq` with a number",
    "trek_ne_scalar": "`torch.ne` with a number",
    "trek_lt_scalar": "`torch.lt` with a number",
    "trek_le_scalar": "`torch.le` with a number",
    "trek_gt_scalar": "`torch.gt` with a number",
    "trek_ge_scalar": "`torch.ge` with a number",
    "trek_max": "torch.amax",
    "trek_min": "torch.amin",
    "trek_max_with_indices": "`torch.max` with a dimension",
    "trek_min_with_indices": "`torch.min` with a dimension",
    "trek_variance": "torch.var",
    "trek_variance_with": "`torch.var` with correction",
    "trek_std_with": "`torch.std` with correction",
    "trek_variance_mean": "torch.var_mean",
    "trek_norm": "torch.linalg.vector_norm",
    "trek_cast": "`torch.Tensor.to` with a dtype",
    "trek_to": "`torch.Tensor.to` with a device",
    "trek_searchsorted_by": "`torch.searchsorted` with sorter",
    "trek_unique_dim": "`torch.unique` with dim",
    "trek_repeat_interleave_by": "`torch.repeat_interleave` with a tensor of repeats",
    "trek_scatter_value": "`torch.scatter` with a number",
    "trek_channels_last": "torch.Tensor.contiguous(memory_format=torch.channels_last)",
    "trek_attention": "torch.nn.functional.scaled_dot_product_attention",
    "trek_lstm": "`torch.nn.LSTM` with one layer and one direction",
    "trek_gru": "`torch.nn.GRU` with one layer and one direction",
    "trek_embedding_with": "`torch.nn.functional.embedding` with max_norm and its other options",
    "trek_outer_product": "torch.outer",
    "trek_solve_right": "torch.linalg.solve(left=False)",
    "trek_svd": "torch.linalg.svd(full_matrices=False)",
    "trek_svd_full": "torch.linalg.svd",
    "trek_qr_complete": 'torch.linalg.qr(mode="complete")',
    "trek_channel_shuffle": "torch.nn.functional.channel_shuffle",
    "trek_max_pool1d_with_indices": "torch.nn.functional.max_pool1d(return_indices=True)",
    "trek_max_pool2d_with_indices": "torch.nn.functional.max_pool2d(return_indices=True)",
    "trek_max_pool3d_with_indices": "torch.nn.functional.max_pool3d(return_indices=True)",
    "trek_div_mode": "`torch.div` with rounding_mode",
    "trek_clamp_var": "`torch.clamp` with tensors as bounds",
    "trek_lerp_var": "`torch.lerp` with a tensor as weight",
    "trek_round_decimals": "`torch.round` with decimals",
    "trek_histogram_edges": "`torch.histogram` with a tensor of edges",
    "trek_split_sections": "`torch.tensor_split` with a number",
    "trek_split_indices": "`torch.tensor_split` with a list",
    "trek_squeeze_dims": "`torch.squeeze` with a tuple",
    "trek_unfold_dim": "torch.Tensor.unfold",
    "trek_slice": "the index `x[start:end:step]`",
    "trek_index": "the index `x[...]`",
    "trek_index_assign": "the assignment `x[...] = v`",
    "trek_subscript_at": "the number `i` in `x[i]`",
    "trek_subscript_range": "the range `start:end:step` in `x[start:end:step]`",
    "trek_subscript_all": "the colon in `x[:]`",
    "trek_subscript_new": "`None` in `x[None]`",
    "trek_subscript_rest": "the ellipsis in `x[..., i]`",
    "trek_subscript_by": "the tensor of indices, or the mask, in `x[t]`",
    # Losses.
    "trek_bce": "torch.nn.functional.binary_cross_entropy",
    "trek_bce_with_logits": "torch.nn.functional.binary_cross_entropy_with_logits",
    "trek_bce_with_logits_with": "torch.nn.functional.binary_cross_entropy_with_logits",
    "trek_focal_loss": "torchvision.ops.sigmoid_focal_loss",
    # Variables and autograd.
    "trek_var_new": "`torch.Tensor.requires_grad_` of a new tensor",
    "trek_var_data": "torch.Tensor.data",
    "trek_var_grad": "torch.Tensor.grad",
    "trek_var_set_grad": "the assignment `x.grad = g`",
    "trek_var_zero_grad": "the assignment `x.grad = None`",
    "trek_var_shape": "torch.Tensor.shape",
    "trek_var_ndim": "torch.Tensor.ndim",
    "trek_var_size": "`torch.Tensor.size` with a dimension",
    "trek_var_dtype": "torch.Tensor.dtype",
    "trek_var_device": "torch.Tensor.device",
    "trek_var_numel": "torch.Tensor.numel",
    "trek_var_item": "torch.Tensor.item",
    "trek_var_print": "print(x)",
    "trek_var_requires_grad": "torch.Tensor.requires_grad",
    "trek_var_is_leaf": "torch.Tensor.is_leaf",
    "trek_var_set_requires_grad": "torch.Tensor.requires_grad_",
    "trek_var_detach": "torch.Tensor.detach",
    "trek_var_on_grad": "torch.Tensor.register_hook",
    "trek_var_remove_hook": "torch.utils.hooks.RemovableHandle.remove",
    "trek_backward": "torch.Tensor.backward",
    "trek_backward_with": "torch.autograd.backward",
    "trek_no_grad_begin": "torch.no_grad",
    "trek_no_grad_end": "torch.no_grad",
    "trek_grad_enabled": "torch.is_grad_enabled",
    "trek_autocast_begin": "torch.autocast",
    "trek_autocast_end": "torch.autocast",
    "trek_autocast_dtype": "torch.get_autocast_dtype",
    "trek_offload_begin": "torch.autograd.graph.save_on_cpu",
    "trek_offload_end": "torch.autograd.graph.save_on_cpu",
    "trek_function_apply": "torch.autograd.Function.apply",
    "trek_function_apply_one": "torch.autograd.Function.apply",
    "trek_save_for_backward": "torch.autograd.function.FunctionCtx.save_for_backward",
    "trek_saved": "`ctx.saved_tensors` in `torch.autograd.Function`",
    "trek_needs_grad": "`ctx.needs_input_grad` in `torch.autograd.Function`",
    # Tensors.
    "trek_tensor_zeros": "torch.zeros",
    "trek_tensor_ones": "torch.ones",
    "trek_tensor_full": "torch.full",
    "trek_tensor_empty": "torch.empty",
    "trek_tensor_arange": "torch.arange",
    "trek_tensor_linspace": "torch.linspace",
    "trek_tensor_logspace": "torch.logspace",
    "trek_tensor_eye": "torch.eye",
    "trek_tensor_rand": "torch.rand",
    "trek_tensor_randn": "torch.randn",
    "trek_tensor_randint": "torch.randint",
    "trek_tensor_randperm": "torch.randperm",
    "trek_tensor_from_data": "torch.tensor",
    "trek_tensor_wrap": "torch.from_numpy",
    "trek_tensor_shape": "torch.Tensor.shape",
    "trek_tensor_strides": "torch.Tensor.stride",
    "trek_tensor_dtype": "torch.Tensor.dtype",
    "trek_tensor_device": "torch.Tensor.device",
    "trek_tensor_numel": "torch.Tensor.numel",
    "trek_tensor_is_contiguous": "torch.Tensor.is_contiguous",
    "trek_tensor_data": "torch.Tensor.data_ptr",
    "trek_tensor_item": "torch.Tensor.item",
    "trek_tensor_to_host": "torch.Tensor.numpy",
    "trek_tensor_copy_from": "torch.Tensor.copy_",
    "trek_tensor_cast": "`torch.Tensor.to` with a dtype",
    "trek_tensor_to": "`torch.Tensor.to` with a device",
    "trek_tensor_contiguous": "torch.Tensor.contiguous",
    "trek_tensor_clone": "torch.Tensor.clone",
    "trek_tensor_view": "torch.Tensor.view",
    "trek_tensor_print": "print(x)",
    "trek_tensor_text": "str(x)",
    "trek_tensor_to_dlpack": "torch.utils.dlpack.to_dlpack",
    "trek_tensor_from_dlpack": "torch.from_dlpack",
    "trek_seed": "torch.manual_seed",
    "trek_dtype_promote": "torch.promote_types",
    "trek_device_parse": "torch.device",
    "trek_device_count": "torch.cuda.device_count",
    "trek_device_sync": "torch.cuda.synchronize",
    "trek_memory_reset_peak": "torch.cuda.reset_peak_memory_stats",
    "trek_memory_release_cached": "torch.cuda.empty_cache",
    "trek_memory_usage": "torch.cuda.memory_stats",
    "trek_device_info_get": "torch.cuda.get_device_properties",
    # Layers, whose class has capitals of its own, or which are methods.
    "trek_nn_relu": "torch.nn.ReLU",
    "trek_nn_relu6": "torch.nn.ReLU6",
    "trek_nn_gelu": "torch.nn.GELU",
    "trek_nn_silu": "torch.nn.SiLU",
    "trek_nn_elu": "torch.nn.ELU",
    "trek_nn_selu": "torch.nn.SELU",
    "trek_nn_celu": "torch.nn.CELU",
    "trek_nn_glu": "torch.nn.GLU",
    "trek_nn_prelu": "torch.nn.PReLU",
    "trek_nn_rrelu": "torch.nn.RReLU",
    "trek_nn_leaky_relu": "torch.nn.LeakyReLU",
    "trek_nn_logsigmoid": "torch.nn.LogSigmoid",
    "trek_nn_rms_norm": "torch.nn.RMSNorm",
    "trek_nn_lp_pool1d": "torch.nn.LPPool1d",
    "trek_nn_lp_pool2d": "torch.nn.LPPool2d",
    "trek_nn_lp_pool3d": "torch.nn.LPPool3d",
    "trek_nn_lstm": "torch.nn.LSTM",
    "trek_nn_gru": "torch.nn.GRU",
    "trek_nn_rnn": "torch.nn.RNN",
    "trek_nn_lstm_cell": "torch.nn.LSTMCell",
    "trek_nn_gru_cell": "torch.nn.GRUCell",
    "trek_nn_rnn_cell": "torch.nn.RNNCell",
    "trek_nn_lstm_forward": "torch.nn.LSTM.forward",
    "trek_nn_gru_forward": "torch.nn.GRU.forward",
    "trek_nn_rnn_forward": "torch.nn.RNN.forward",
    "trek_nn_lstm_cell_forward": "torch.nn.LSTMCell.forward",
    "trek_nn_gru_cell_forward": "torch.nn.GRUCell.forward",
    "trek_nn_rnn_cell_forward": "torch.nn.RNNCell.forward",
    "trek_nn_multihead_attention_forward": "torch.nn.MultiheadAttention.forward",
    "trek_nn_sequential_add": "torch.nn.Sequential.append",
    "trek_nn_pad": "`torch.nn.ConstantPad2d`, `torch.nn.ReflectionPad2d`, `torch.nn.ReplicationPad2d` and their like",
    "trek_nn_offload": "`torch.autograd.graph.save_on_cpu` around a module",
    "trek_nn_recompute": "`torch.utils.checkpoint.checkpoint` around a module",
    "trek_forward_recomputed": "torch.utils.checkpoint.checkpoint",
    # Modules.
    "trek_module_add": "torch.nn.Module.add_module",
    "trek_module_param": "torch.nn.Module.register_parameter",
    "trek_module_buffer": "torch.nn.Module.register_buffer",
    "trek_forward": "torch.nn.Module.forward",
    "trek_forward_many": "torch.nn.Module.forward",
    "trek_forward_results": "torch.nn.Module.forward",
    "trek_module_train": "`torch.nn.Module.train` and `torch.nn.Module.eval`",
    "trek_module_freeze": "torch.nn.Module.requires_grad_(False)",
    "trek_module_thaw": "torch.nn.Module.requires_grad_",
    "trek_module_to": "torch.nn.Module.to",
    "trek_module_copy": "copy.deepcopy(module)",
    "trek_module_params": "torch.nn.Module.named_parameters",
    "trek_module_each_param": "torch.nn.Module.named_parameters",
    "trek_module_each_buffer": "torch.nn.Module.named_buffers",
    "trek_module_each": "torch.nn.Module.named_modules",
    "trek_module_find": "`torch.nn.Module.get_parameter` and `torch.nn.Module.get_buffer`",
    "trek_parametrize": "torch.nn.utils.parametrize.register_parametrization",
    "trek_parametrize_remove": "torch.nn.utils.parametrize.remove_parametrizations",
    "trek_state_of": "torch.nn.Module.state_dict",
    "trek_state_apply": "torch.nn.Module.load_state_dict",
    "trek_state_save": "`safetensors.torch.save_file(module.state_dict(), path)`",
    "trek_state_load": "module.load_state_dict(safetensors.torch.load_file(path))",
    # Initialisers.
    "trek_init_gain": "torch.nn.init.calculate_gain",
    "trek_init_skip_begin": "torch.nn.utils.skip_init",
    "trek_init_skip_end": "torch.nn.utils.skip_init",
    # Optimizers and schedules.
    "trek_sgd": "torch.optim.SGD",
    "trek_adam": "torch.optim.Adam",
    "trek_adamw": "torch.optim.AdamW",
    "trek_rmsprop": "torch.optim.RMSprop",
    "trek_adagrad": "torch.optim.Adagrad",
    "trek_adadelta": "torch.optim.Adadelta",
    "trek_adamax": "torch.optim.Adamax",
    "trek_nadam": "torch.optim.NAdam",
    "trek_asgd": "torch.optim.ASGD",
    "trek_radam": "torch.optim.RAdam",
    "trek_rprop": "torch.optim.Rprop",
    "trek_adafactor": "torch.optim.Adafactor",
    "trek_muon": "torch.optim.Muon",
    "trek_optimizer_new": "the constructor of `torch.optim.Optimizer`",
    "trek_optimizer_step": "torch.optim.Optimizer.step",
    "trek_optimizer_zero_grad": "torch.optim.Optimizer.zero_grad",
    "trek_optimizer_add_group": "torch.optim.Optimizer.add_param_group",
    "trek_optimizer_save": "torch.optim.Optimizer.state_dict",
    "trek_optimizer_load": "torch.optim.Optimizer.load_state_dict",
    "trek_clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "trek_clip_grad_value": "torch.nn.utils.clip_grad_value_",
    "trek_lbfgs_new": "torch.optim.LBFGS",
    "trek_lbfgs_step": "torch.optim.LBFGS.step",
    "trek_lbfgs_zero_grad": "torch.optim.LBFGS.zero_grad",
    "trek_averaged_new": "torch.optim.swa_utils.AveragedModel",
    "trek_averaged_update": "torch.optim.swa_utils.AveragedModel.update_parameters",
    "trek_grad_scaler_new": "torch.amp.GradScaler",
    "trek_grad_scaler_scale": "torch.amp.GradScaler.scale",
    "trek_grad_scaler_unscale": "torch.amp.GradScaler.unscale_",
    "trek_grad_scaler_step": "torch.amp.GradScaler.step",
    "trek_grad_scaler_update": "torch.amp.GradScaler.update",
    "trek_grad_scaler_value": "torch.amp.GradScaler.get_scale",
    "trek_grad_scaler_save": "torch.amp.GradScaler.state_dict",
    "trek_grad_scaler_load": "torch.amp.GradScaler.load_state_dict",
    "trek_step_lr": "torch.optim.lr_scheduler.StepLR",
    "trek_multistep_lr": "torch.optim.lr_scheduler.MultiStepLR",
    "trek_cosine_lr": "torch.optim.lr_scheduler.CosineAnnealingLR",
    "trek_exponential_lr": "torch.optim.lr_scheduler.ExponentialLR",
    "trek_polynomial_lr": "torch.optim.lr_scheduler.PolynomialLR",
    "trek_linear_lr": "torch.optim.lr_scheduler.LinearLR",
    "trek_cosine_restarts_lr": "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts",
    "trek_lambda_lr": "torch.optim.lr_scheduler.LambdaLR",
    "trek_sequential_lr": "torch.optim.lr_scheduler.SequentialLR",
    "trek_chained_lr": "torch.optim.lr_scheduler.ChainedScheduler",
    "trek_onecycle_lr": "torch.optim.lr_scheduler.OneCycleLR",
    "trek_cyclic_lr": "torch.optim.lr_scheduler.CyclicLR",
    "trek_warmup_lr": "`torch.optim.lr_scheduler.SequentialLR` of `torch.optim.lr_scheduler.LinearLR` and another schedule",
    "trek_plateau_lr": "torch.optim.lr_scheduler.ReduceLROnPlateau",
    "trek_plateau_observe": "torch.optim.lr_scheduler.ReduceLROnPlateau.step",
    # Data.
    "trek_dataset_new": "a class derived from `torch.utils.data.Dataset`",
    "trek_dataset_tensors": "torch.utils.data.TensorDataset",
    "trek_dataset_subset": "`torch.utils.data.Subset` with a range",
    "trek_dataset_indices": "torch.utils.data.Subset",
    "trek_dataset_split": "torch.utils.data.random_split",
    "trek_dataset_concat": "torch.utils.data.ConcatDataset",
    "trek_dataset_collate": "`collate_fn` of `torch.utils.data.DataLoader`",
    "trek_dataset_pad": "`torch.nn.utils.rnn.pad_sequence` in a `collate_fn`",
    "trek_dataset_mnist": "torchvision.datasets.MNIST",
    "trek_dataset_cifar10": "torchvision.datasets.CIFAR10",
    "trek_dataset_cifar100": "torchvision.datasets.CIFAR100",
    "trek_dataset_image_folder": "torchvision.datasets.ImageFolder",
    "trek_image_read": "torchvision.io.read_image",
    "trek_image_decode": "torchvision.io.decode_image",
    "trek_image_write_png": "torchvision.io.write_png",
    "trek_loader_new": "torch.utils.data.DataLoader",
    "trek_sampler_new": "a class derived from `torch.utils.data.Sampler`",
    "trek_sampler_sequential": "torch.utils.data.SequentialSampler",
    "trek_sampler_random": "torch.utils.data.RandomSampler",
    "trek_sampler_weighted": "torch.utils.data.WeightedRandomSampler",
    "trek_transform_chain": "torchvision.transforms.v2.Compose",
    "trek_transform_function": "torchvision.transforms.v2.Lambda",
    "trek_transform_to_float": "torchvision.transforms.v2.ToDtype(torch.float32, scale=True)",
    "trek_transform_adjust": "`torchvision.transforms.v2.functional.adjust_brightness` and its like",
    "trek_dataset_mix": "`torchvision.transforms.v2.MixUp` and `torchvision.transforms.v2.CutMix`",
    # Many ranks.
    "trek_comm_init": "torch.distributed.init_process_group",
    "trek_comm_rank": "torch.distributed.get_rank",
    "trek_comm_world_size": "torch.distributed.get_world_size",
    "trek_comm_all_reduce": "torch.distributed.all_reduce",
    "trek_comm_broadcast": "torch.distributed.broadcast",
    "trek_comm_all_gather": "torch.distributed.all_gather_into_tensor",
    "trek_comm_reduce_scatter": "torch.distributed.reduce_scatter_tensor",
    "trek_comm_barrier": "torch.distributed.barrier",
    "trek_comm_split": "torch.distributed.new_group",
    "trek_ddp_wrap": "torch.nn.parallel.DistributedDataParallel",
    "trek_ddp_wrap_process": "torch.nn.parallel.DistributedDataParallel",
    "trek_ddp_replica_module": "module of `torch.nn.parallel.DistributedDataParallel`",
    "trek_ddp_optimizer": "torch.distributed.optim.ZeroRedundancyOptimizer",
    "trek_checkpoint_save": "`torch.save` of the state dicts",
    "trek_trainer_joined": "`torchrun` starts all processes again; Horovod: `hvd.elastic.State.sync`",
    "trek_checkpoint_load": "`torch.load`, then `load_state_dict` of each object",
    "trek_checkpoint_writer_save": "torch.distributed.checkpoint.async_save",
    # Graphs, timelines, other programs.
    "trek_graph_capture": "torch.cuda.graph",
    "trek_timeline_new": "torch.profiler.profile",
    "trek_timeline_begin": "torch.profiler.record_function",
    "trek_monitor_new": "torch.utils.tensorboard.SummaryWriter",
    "trek_monitor_scalar": "torch.utils.tensorboard.SummaryWriter.add_scalar",
    "trek_monitor_scalars": "torch.utils.tensorboard.SummaryWriter.add_scalars",
    "trek_monitor_histogram": "torch.utils.tensorboard.SummaryWriter.add_histogram",
    "trek_monitor_image": "torch.utils.tensorboard.SummaryWriter.add_image",
    "trek_monitor_text": "torch.utils.tensorboard.SummaryWriter.add_text",
    "trek_monitor_graph": "torch.utils.tensorboard.SummaryWriter.add_graph",
    "trek_onnx_export": "torch.onnx.export",
}

NONE = set("""
    trek_linear_activation trek_conv2d_activation trek_add_layer_norm trek_attention_weights trek_swiglu trek_linear_cross_entropy
    trek_accuracy trek_info_nce trek_loss_weight trek_loss_set_weight trek_rotary trek_rotary_table trek_sinusoidal_positions
    trek_alibi trek_relative_position_bucket trek_var_constant trek_var_from trek_var_retain trek_var_release trek_tape_size
    trek_offload_usage trek_function_data
    trek_nn_swiglu trek_nn_rotary trek_nn_sinusoidal_positions trek_nn_channels_last trek_nn_softmax_router trek_nn_sigmoid_router
    trek_nn_argmax_selector trek_nn_fixed_selector trek_nn_threshold_halt trek_nn_learned_halt
    trek_lion trek_lamb trek_lars trek_with_state trek_constant_lr trek_inverse_sqrt_lr trek_wsd_lr trek_scaled_lr
    trek_transform_free trek_transform_apply trek_transform_uniform trek_transform_crop
""".split())


def camel(name):
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def counterpart(name, header):
    """The text for a function that this header declares; "" if it is known to have none, None if no rule knows the function."""
    if name in NONE:
        return ""
    if name in OTHERS:
        return OTHERS[name]
    for module, names in SAME.items():
        if name in names.split():
            return f"{module}.{name.removeprefix('trek_')}"
    if name.endswith("_with") and counterpart(name.removesuffix("_with"), header) is not None:
        return counterpart(name.removesuffix("_with"), header)
    if name.startswith("trek_nn_"):
        return "torch.nn." + camel(name.removeprefix("trek_nn_"))
    if name.startswith("trek_init_"):
        return f"torch.nn.init.{name.removeprefix('trek_init_')}_"
    if name.startswith("trek_transform_"):
        return "torchvision.transforms.v2." + camel(name.removeprefix("trek_transform_"))
    return "torch." + name.removeprefix("trek_") if str(header).startswith("autograd/") else None


def shown(name, header):
    """The sentence of the reference, or None. A text without backquotes is code as a whole."""
    text = counterpart(name, header)
    if not text:
        return None if text is None else "*PyTorch:* no counterpart."
    return "*PyTorch:* " + re.sub(r"`([^`]+)`", r"\\ ``\1``\\ ", text if "`" in text else f"`{text}`") + "."


def resolved(path):
    """Whether an object of PyTorch or torchvision has this name."""
    import importlib  # noqa: PLC0415
    parts = path.split(".")
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(root / "tests" / "checks"))
    import public  # noqa: PLC0415
    import importlib.util  # noqa: PLC0415
    seen, wrong = set(), []
    for name, header in public.declared(root).items():
        for path in re.findall(r"(?<![\w.])torch(?:vision)?(?:\.\w+)+", counterpart(name, header) or ""):
            part = next((part for part in ("torchvision", "tensorboard") if part in path), "torch")
            if not importlib.util.find_spec(part):
                continue
            seen.add(path)
            if not resolved(path):
                wrong.append(f"{name}: PyTorch has no {path}")
    print("\n".join(wrong) or f"{len(seen)} counterparts exist")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images against Pillow, and transforms against torchvision where it is installed: the same pixels, or nearly.
    usage: check_images.py <path of libtrek.so>      (needs numpy and Pillow)"""
import ctypes
import io
import pathlib
import sys
import tempfile

import numpy as np
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "differential"))
from headers import Headers, Unknown

headers = Headers("tensor/status.h", "tensor/types.h", "tensor/tensor.h", "tensor/layout.h", "data/dataset.h", "data/dataset_class.h", "data/image.h", "data/transform.h")
library = ctypes.CDLL(sys.argv[1])
for function in headers.functions.values():
    try:
        bound = getattr(library, function.name)
        bound.restype, bound.argtypes = headers.type(function.result), [headers.type(kind) for kind, _ in function.params]
    except (AttributeError, Unknown):
        continue
DTYPES = {np.dtype(np.uint8): headers.enums["trek_dtype"]["TREK_U8"], np.dtype(np.float32): headers.enums["trek_dtype"]["TREK_F32"]}
S = headers.structs
CPU = S["trek_device"](0, 0)
FILTER = headers.enums["trek_image_filter"]
PADDING = headers.enums["trek_image_padding"]
checks = 0


def made(pointer, what):
    if not pointer:
        message = library.trek_error().decode()
        library.trek_error_clear()
        if "was built without" in message:
            print(f"skipped: {message}")
            sys.exit(0)
        raise RuntimeError(f"{what}: {message}")
    return pointer


def shape(*sizes):
    return S["trek_shape"](len(sizes), (ctypes.c_int64 * 8)(*sizes))


def tensor(array):
    array = np.ascontiguousarray(array)
    return made(library.trek_tensor_from_data(array.ctypes.data, shape(*array.shape), DTYPES[array.dtype], CPU), "tensor")


def array(pointer, what=""):
    made(pointer, what)
    have = library.trek_tensor_shape(pointer)
    out = np.empty(have.sizes[: have.ndim], {v: k for k, v in DTYPES.items()}[library.trek_tensor_dtype(pointer)])
    assert library.trek_tensor_to_host(pointer, library.trek_tensor_dtype(pointer), out.ctypes.data, out.nbytes) == 0
    library.trek_tensor_release(pointer)
    return out


def applied(transform, image, seed=0, sample=0):
    made(transform, "a transform")
    x = tensor(image)
    out = array(library.trek_transform_apply(transform, x, seed, 0, sample), "apply")
    library.trek_tensor_release(x)
    library.trek_transform_free(ctypes.byref(ctypes.c_void_p(transform)))
    return out


def near(what, ours, theirs, most):
    global checks
    checks += 1
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, (what, ours.shape, theirs.shape, ours.dtype, theirs.dtype)
    worst = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max() if ours.size else 0
    assert worst <= most, f"{what}: off by {worst}, {most} allowed"


def planes(image):
    x = np.asarray(image)
    return np.ascontiguousarray(x[None] if x.ndim == 2 else x.transpose(2, 0, 1))


def opts(name, **fields):
    out = S[name]()
    for field, value in fields.items():
        setattr(out, field, (ctypes.c_double * len(value))(*value) if isinstance(value, tuple) else value)
    return out


random = np.random.default_rng(5)


def picture(height, width, mode="RGB"):
    """Smooth, with some noise, so that JPEG keeps most of it."""
    y, x = np.mgrid[0:height, 0:width]
    channels = {"RGB": 3, "L": 1, "RGBA": 4, "LA": 2, "CMYK": 4}[mode]
    waves = [127 + 90 * np.sin(x / (7 + 3 * c)) * np.cos(y / (11 - 2 * c)) + random.normal(0, 12, (height, width)) for c in range(channels)]
    pixels = np.clip(np.stack(waves, -1), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels, mode) if mode != "CMYK" else Image.frombytes("CMYK", (width, height), pixels.tobytes())


def read(path, **fields):
    return array(library.trek_image_read(str(path).encode(), ctypes.byref(opts("trek_image_read_opts", **fields))), str(path))


def check_png(folder):
    for height, width in ((37, 53), (1, 1), (64, 3)):
        for mode in ("RGB", "L", "RGBA", "LA"):
            path, image = folder / f"{mode}.png", picture(height, width, mode)
            image.save(path)
            near(f"PNG {mode}", read(path), planes(image.convert("RGB")), 0)
            near(f"PNG {mode} with alpha", read(path, channels=4), planes(image.convert("RGBA")), 0)
            near(f"PNG {mode} gray", read(path, channels=1), planes(image.convert("L") if mode != "RGBA" else image.convert("RGB").convert("L")), 0)
        path = folder / "few.png"
        picture(height, width).quantize(13).save(path)
        near("PNG of a palette", read(path), planes(Image.open(path).convert("RGB")), 0)
        picture(height, width, "L").point(lambda v: 255 * (v > 127)).convert("1").save(path)
        near("PNG of two colours", read(path), planes(Image.open(path).convert("RGB")), 0)
        clear = picture(height, width).quantize(13)
        clear.save(path, transparency=3)
        near("PNG of a palette with alpha", read(path, channels=4), planes(Image.open(path).convert("RGBA")), 0)
        deep = random.integers(0, 65536, (height, width)).astype(np.uint16)
        Image.fromarray(deep).save(path)
        near("PNG of 16 bits", read(path, channels=1)[0], (deep >> 8).astype(np.uint8), 0)
        for channels, mode in ((1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")):
            pixels = random.integers(0, 256, (channels, height, width)).astype(np.uint8)
            x = tensor(pixels)
            assert library.trek_image_write_png(str(path).encode(), x) == 0, library.trek_error()
            library.trek_tensor_release(x)
            back = Image.open(path)
            assert back.mode == mode
            near("PNG written", planes(back), pixels, 0)


def check_jpeg(folder):
    path = folder / "x.jpg"
    for height, width in ((37, 53), (8, 8), (1, 1), (130, 77)):
        for how in ({"quality": 90}, {"quality": 75, "progressive": True}, {"quality": 95, "subsampling": 0}, {"quality": 60, "subsampling": 1}):
            picture(height, width).save(path, **how)
            near(f"JPEG {how}", read(path), planes(Image.open(path).convert("RGB")), 2)
        picture(height, width, "L").save(path)
        near("JPEG of gray", read(path), planes(Image.open(path).convert("RGB")), 2)
        near("JPEG of gray as it is", read(path, channels=1), planes(Image.open(path)), 2)
        picture(height, width, "CMYK").save(path, quality=95)
        near("JPEG of CMYK", read(path), planes(Image.open(path).convert("RGB")), 3)
    picture(400, 600).save(path, quality=90)
    for at_least, want in ((224, (400, 600)), (200, (200, 300)), (60, (100, 150)), (1, (50, 75))):
        assert read(path, shrink_to=at_least).shape == (3, *want)
    draft = Image.open(path)
    draft.draft("RGB", (300, 200))
    near("JPEG at half the size", read(path, shrink_to=200), planes(draft), 2)


def check_damaged(folder):
    """Cut off, bytes changed: an error that names the file, or an image; never more."""
    path, refused, total = folder / "damaged", 0, 0
    for form in ("png", "jpeg"):
        bytes_ = io.BytesIO()
        picture(40, 50).save(bytes_, form)
        whole = bytes_.getvalue()
        for k in range(150):
            broken = bytearray(whole[: random.integers(0, len(whole))] if k % 2 else whole)
            for _ in range(k % 7):
                if broken:
                    broken[random.integers(0, len(broken))] = random.integers(0, 256)
            path.write_bytes(broken)
            x = library.trek_image_read(str(path).encode(), None)
            total += 1
            if x:
                library.trek_tensor_release(x)
            else:
                refused += 1
                assert str(path) in library.trek_error().decode(), library.trek_error()
                library.trek_error_clear()
    assert refused > total / 3, f"only {refused} of {total} damaged files were refused"


def check_resize():
    pillow = {"BILINEAR": Image.BILINEAR, "NEAREST": Image.NEAREST, "BICUBIC": Image.BICUBIC}
    for height, width, to_height, to_width in ((50, 70, 33, 41), (50, 70, 224, 225), (200, 300, 20, 300), (9, 300, 9, 31), (3, 2, 1, 1), (64, 64, 64, 64), (1, 1, 5, 7)):
        image = picture(height, width)
        for name, number in pillow.items():
            how = opts("trek_image_resize_opts", filter=FILTER["TREK_IMAGE_FILTER_" + name])
            ours = applied(library.trek_transform_resize(to_height, to_width, ctypes.byref(how)), planes(image))
            near(f"resize {name} {height}x{width} -> {to_height}x{to_width}", ours, planes(image.resize((to_width, to_height), number)), 0)
            floats = np.asarray(image)[..., 0].astype(np.float32) / 255
            ours = applied(library.trek_transform_resize(to_height, to_width, ctypes.byref(how)), floats[None])
            near(f"resize {name} of f32", ours[0], np.asarray(Image.fromarray(floats).resize((to_width, to_height), number)), 1e-5)
    image = picture(50, 80)
    near("crop and resize", applied(chain(library.trek_transform_crop(5, 7, 30, 40), library.trek_transform_resize(64, 48, None)), planes(image)),
         planes(image.crop((7, 5, 47, 35)).resize((48, 64), Image.BILINEAR)), 0)


def chain(*transforms):
    return library.trek_transform_chain((ctypes.c_void_p * len(transforms))(*transforms), len(transforms))


def both():
    image = planes(picture(46, 61))
    return image, (image / np.float32(255)).astype(np.float32)


def check_torchvision():
    import torch
    import torchvision.transforms.functional as F
    from torchvision.transforms import InterpolationMode as Mode

    def theirs(function, image, *args, **kwargs):
        return function(torch.from_numpy(image), *args, **kwargs).numpy()

    for image in both():
        name, small = image.dtype.name, 0 if image.dtype == np.uint8 else 1e-6
        for f in (0.0, 0.37, 1.0, 1.8):
            near(f"brightness {name}", applied(library.trek_transform_adjust(f, 1, 1, 0), image), theirs(F.adjust_brightness, image, f), small)
            near(f"contrast {name}", applied(library.trek_transform_adjust(1, f, 1, 0), image), theirs(F.adjust_contrast, image, f), 1 if small == 0 else 1e-5)
            near(f"saturation {name}", applied(library.trek_transform_adjust(1, 1, f, 0), image), theirs(F.adjust_saturation, image, f), small)
        for turn in (-0.5, -0.13, 0.25, 0.5):
            near(f"hue {name}", applied(library.trek_transform_adjust(1, 1, 1, turn), image), theirs(F.adjust_hue, image, turn), 1 if small == 0 else 1e-5)
        gray = np.repeat(image[:1], 3, 0)
        near(f"hue of gray {name}", applied(library.trek_transform_adjust(1, 1, 1, 0.2), gray), theirs(F.adjust_hue, gray, 0.2), 1 if small == 0 else 1e-5)
        near(f"grayscale {name}", applied(library.trek_transform_grayscale(3), image), theirs(F.rgb_to_grayscale, image, 3), small)
        near(f"flip {name}", applied(library.trek_transform_random_horizontal_flip(1), image), image[:, :, ::-1], 0)
        near(f"vertical flip {name}", applied(library.trek_transform_random_vertical_flip(1), image), image[:, ::-1], 0)
        for size in ((20, 30), (60, 30), (60, 80), (47, 62), (46, 61)):
            near(f"center crop {name} {size}", applied(library.trek_transform_center_crop(*size), image), theirs(F.center_crop, image, size), 0)
        for mode in ("constant", "edge", "reflect", "symmetric"):
            how = opts("trek_image_pad_opts", left=3, top=5, right=7, bottom=1, mode=PADDING["TREK_IMAGE_PADDING_" + mode.upper()], fill=1.0 if mode == "constant" else 0.0)
            near(f"pad {mode} {name}", applied(library.trek_transform_pad(ctypes.byref(how)), image),
                 theirs(F.pad, image, [3, 5, 7, 1], fill=1 if mode == "constant" else 0, padding_mode=mode), 0)
        for kernel, sigma in ((3, 0.8), (9, 2.5)):
            near(f"blur {name}", applied(library.trek_transform_gaussian_blur(kernel, sigma, sigma), image), theirs(F.gaussian_blur, image, [kernel, kernel], [sigma, sigma]), 1 if small == 0 else 1e-5)
        for filter_, mode in (("BILINEAR", Mode.BILINEAR), ("NEAREST", Mode.NEAREST)):
            for angle, scale, shear in ((0.0, 1.0, (0, 0)), (33.0, 1.0, (0, 0)), (-71.0, 0.7, (12.0, -9.0)), (180.0, 1.3, (0, 25.0))):
                how = opts("trek_random_affine_opts", degrees=(angle, angle), scale=(scale, scale), shear_x=(shear[0], shear[0]), shear_y=(shear[1], shear[1]), filter=FILTER["TREK_IMAGE_FILTER_" + filter_])
                ours = applied(library.trek_transform_random_affine(ctypes.byref(how)), image)
                want = theirs(F.affine, image, angle, [0, 0], scale, list(shear), interpolation=mode)
                few(f"affine {filter_} {angle} {name}", ours, want, 1 if small == 0 else 2e-4)
            few(f"rotation {filter_} {name}", applied(library.trek_transform_random_rotation(25, 25, FILTER["TREK_IMAGE_FILTER_" + filter_], 0), image),
                theirs(F.rotate, image, 25.0, interpolation=mode), 1 if small == 0 else 2e-4)
        for size in ((23, 31), (90, 100)):
            for antialias in (True, False):
                for filter_, mode in (("BILINEAR", Mode.BILINEAR), ("BICUBIC", Mode.BICUBIC)):
                    how = opts("trek_image_resize_opts", filter=FILTER["TREK_IMAGE_FILTER_" + filter_], no_antialias=not antialias)
                    want = theirs(F.resize, image, list(size), interpolation=mode, antialias=antialias)
                    edge = 2 if filter_ == "BICUBIC" and not antialias else 0  # its taps beyond the edge repeat the edge's pixel
                    inner = np.s_[:, edge * 3 : -edge * 3 or None, edge * 3 : -edge * 3 or None]
                    near(f"resize {filter_} {size} {antialias} {name}", applied(library.trek_transform_resize(*size, ctypes.byref(how)), image)[inner], want[inner], 1 if small == 0 else 1e-5)
        near("shorter side", applied(library.trek_transform_resize(20, 0, None), image), theirs(F.resize, image, 20, antialias=True), 1 if small == 0 else 1e-5)
    image = both()[0]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    three = ctypes.c_double * 3
    floats = torch.from_numpy(image).div(255)
    near("normalize", applied(library.trek_transform_normalize(three(*mean), three(*std), 3), image), F.normalize(floats, mean, std).numpy(), 1e-6)
    near("to_float", applied(library.trek_transform_to_float(), image), floats.numpy(), 0)


def few(what, ours, theirs, most):
    """Near, but for the odd pixel: at the edge of the picture, or of two, where a rounding decides."""
    global checks
    checks += 1
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    wrong = (np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) > most).mean()
    assert wrong < 0.005, f"{what}: {wrong:.2%} of the pixels differ"


with tempfile.TemporaryDirectory() as name:
    check_png(pathlib.Path(name))
    check_jpeg(pathlib.Path(name))
    check_damaged(pathlib.Path(name))
check_resize()
try:
    import torchvision  # noqa: F401
except ImportError:
    print("transforms: torchvision is not installed")
else:
    check_torchvision()
print(f"{checks} comparisons with Pillow{' and torchvision' if 'torchvision' in sys.modules else ''}")

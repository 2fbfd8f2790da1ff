#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command as two processes that are as far apart as one likes: each in a network (and /dev/shm, and process numbers) of
its own, so that they take each other for two machines; between them a link with a rate and a delay, one bottleneck of its own
in each direction, with a queue. Needs root and /dev/net/tun; no kernel module.

    far.py [--rate MBIT/S] [--delay MS] COMMAND ...

The command finds TREK_RANK, TREK_WORLD_SIZE, TREK_ADDRESS, TREK_PORT as from a launcher, and TREK_THREADS=1. --delay: one way;
a round trip takes twice as long. --rate 0: as fast as it goes. Ends with the bytes that went over the link.
"""
import argparse
import ctypes
import fcntl
import heapq
import os
import select
import socket
import struct
import subprocess
import sys
import time

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x20000000, 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454ca, 1, 0x1000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
ADDRESS, PORT, MTU = "10.77.0.%d", 29501, 1500
QUEUE_S = 0.25  # what the link's queue holds, of its rate; more is dropped, as a router does

libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def enter_machine(number):
    """This process, and those it starts, are on a machine of their own. Returns its end of the link."""
    check(libc.unshare(CLONE_NEWNET | CLONE_NEWNS), "unshare")
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount /")
    check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None), "mount /dev/shm")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"far0", IFF_TUN | IFF_NO_PI))
    for command in ("link set lo up", f"addr add {ADDRESS % (number + 1)}/24 dev far0", f"link set far0 mtu {MTU} up"):
        subprocess.run(["ip"] + command.split(), check=True)
    check(libc.unshare(CLONE_NEWPID), "unshare")  # of what is started next, which is its first process
    return tun


def start(number, command):
    """A process on a machine of its own: its pid, and the machine's end of the link."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid == 0:
        here.close()
        tun = enter_machine(number)
        socket.send_fds(there, [b"x"], [tun])
        os.close(tun)
        environment = dict(os.environ, TREK_RANK=str(number), TREK_WORLD_SIZE="2", TREK_LOCAL_RANK="0",
                           TREK_LOCAL_WORLD_SIZE="1", TREK_ADDRESS=ADDRESS % 1, TREK_PORT=str(PORT), TREK_GLOO_INTERFACE="far0")
        environment.setdefault("TREK_THREADS", "1")
        environment.setdefault("TREK_TOKEN", "none") # the network is this program's own
        os._exit(subprocess.run(command, env=environment).returncode & 255)
    there.close()
    _, fds, _, _ = socket.recv_fds(here, 1, 1)
    here.close()
    os.set_blocking(fds[0], False)
    return pid, fds[0]


class Direction:
    """Packets from one end to the other."""

    def __init__(self, source, target, rate, delay):
        self.source, self.target, self.rate, self.delay = source, target, rate, delay
        self.free, self.bytes, self.dropped, self.order, self.flying = 0.0, 0, 0, 0, []

    def take(self, now):
        try:
            packet = os.read(self.source, 65536)
        except (BlockingIOError, OSError):
            return False
        begin = max(now, self.free)
        if self.rate and begin - now > QUEUE_S:
            self.dropped += 1
            return True
        self.free = begin + (len(packet) * 8 / self.rate if self.rate else 0)
        self.bytes += len(packet)
        self.order += 1
        heapq.heappush(self.flying, (self.free + self.delay, self.order, packet))
        return True

    def deliver(self, now):
        while self.flying and self.flying[0][0] <= now:
            try:
                os.write(self.target, heapq.heappop(self.flying)[2])
            except OSError:
                self.dropped += 1

    def due(self):
        return self.flying[0][0] if self.flying else None


def relay(ends, rate, delay, pids):
    """Until both processes have ended. Returns the directions and the exit codes."""
    directions = [Direction(ends[0], ends[1], rate, delay), Direction(ends[1], ends[0], rate, delay)]
    codes, left = [], set(pids)
    while left:
        dues = [d.due() for d in directions if d.due() is not None]
        wait = min(0.05, max(0.0, min(dues) - time.monotonic())) if dues else 0.05
        select.select(ends, [], [], wait)
        now = time.monotonic()
        for d in directions:
            while d.take(now):
                pass
            d.deliver(time.monotonic())
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                codes.append(os.waitstatus_to_exitcode(status))
    return directions, codes


def main():
    parser = argparse.ArgumentParser(usage="far.py [--rate MBIT/S] [--delay MS] COMMAND ...")
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--delay", type=float, default=40)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("no command")
    began = time.monotonic()
    started = [start(number, options.command) for number in range(2)]
    directions, codes = relay([s[1] for s in started], options.rate * 1e6, options.delay * 1e-3, [s[0] for s in started])
    print(f"link: {options.rate:g} Mbit/s, {options.delay:g} ms; {directions[0].bytes} bytes one way, {directions[1].bytes} the "
          f"other, {directions[0].dropped + directions[1].dropped} packets dropped, {time.monotonic() - began:.1f} s")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

"""An arm of six simulated STS3215 servos with Feetech's protocol 0, reached by a pseudo-terminal.

    python tools/interop/feetech_arm.py PORT LOG [--swings]

PORT becomes a link to the pseudo-terminal, which LeRobot opens like a serial port. The servos move to their goals at no
more than SPEED while they have torque; with ``--swings`` they swing as if a person moved a leader arm. Each write to
goals and torque is a line of the file LOG: ``[seconds, "goal" | "torque", {servo: value}]``. The program ends when its
input is closed.

Packets: FF FF id length instruction parameters checksum (Feetech's memory table and manual of the STS series).
"""

import contextlib
import json
import math
import os
import pty
import select
import sys
import time
import tty
from pathlib import Path

SERVOS = range(1, 7)
SPEED = 4000.0  # ticks a second, of 4096 a turn
MIDDLE, LOW, HIGH = 2048, 1024, 3072
SWING, PERIOD_S = 300.0, 6.0
ALL = 0xFE
PING, READ, WRITE, SYNC_READ, SYNC_WRITE = 1, 2, 3, 0x82, 0x83
MODEL, MODEL_NUMBER = 3, 777
LOWEST, HIGHEST, TORQUE, GOAL, POSITION = 9, 11, 40, 42, 56


class Servo:
    """A servo with its registers and motion."""

    def __init__(self, number, swings):
        self.number, self.swings = number, swings
        self.memory = bytearray(256)
        self.put(MODEL, MODEL_NUMBER)
        self.put(LOWEST, LOW)
        self.put(HIGHEST, HIGH)
        self.position = float(MIDDLE)
        self.put(GOAL, MIDDLE)
        self.moved = time.monotonic()

    def put(self, address, word):
        self.memory[address : address + 2] = word.to_bytes(2, "little")

    def word(self, address):
        return int.from_bytes(self.memory[address : address + 2], "little")

    def move(self, now):
        if self.swings:
            angle = 2 * math.pi * now / PERIOD_S + self.number
            self.position = MIDDLE + SWING * math.sin(angle)
        elif self.memory[TORQUE]:
            most = SPEED * (now - self.moved)
            self.position += min(max(self.word(GOAL) - self.position, -most), most)
        self.moved = now
        self.put(POSITION, round(self.position))

    def status(self, data=b""):
        body = bytes([self.number, len(data) + 2, 0]) + data
        return b"\xff\xff" + body + bytes([~sum(body) & 0xFF])


class Arm:
    """The servos on a bus, which answer packets."""

    def __init__(self, log, swings):
        self.servos = {number: Servo(number, swings) for number in SERVOS}
        self.log = log
        self.waiting = b""

    def note(self, address, values):
        name = {GOAL: "goal", TORQUE: "torque"}.get(address)
        if name is not None:
            self.log.write(json.dumps([time.monotonic(), name, values]) + "\n")
            self.log.flush()

    def feed(self, data):
        """Process received bytes; return the bytes of the answers."""
        self.waiting += data
        answer = b""
        while (start := self.waiting.find(b"\xff\xff")) >= 0:
            packet = self.waiting[start:]
            if len(packet) < 4 or len(packet) < packet[3] + 4:
                break
            size = packet[3] + 4
            body, check = packet[2 : size - 1], packet[size - 1]
            self.waiting = packet[size:]
            if check == ~sum(body) & 0xFF:
                answer += self.answer(body[0], body[2], body[3:])
        return answer

    def answer(self, number, instruction, data):
        now = time.monotonic()
        for servo in self.servos.values():
            servo.move(now)
        if instruction == SYNC_READ:
            address, size = data[:2]
            return b"".join(self.read(self.servos[n], address, size) for n in data[2:])
        if instruction == SYNC_WRITE:
            address, size = data[:2]
            rows = [data[k : k + size + 1] for k in range(2, len(data), size + 1)]
            for row in rows:
                self.write(self.servos[row[0]], address, row[1:])
            values = {row[0]: int.from_bytes(row[1:], "little") for row in rows}
            self.note(address, values)
            return b""
        addressed = [s for n, s in self.servos.items() if number in (n, ALL)]
        if instruction == PING:
            return b"".join(servo.status() for servo in addressed)
        if instruction == READ:
            return b"".join(self.read(servo, *data[:2]) for servo in addressed)
        if instruction == WRITE:
            for servo in addressed:
                self.write(servo, data[0], data[1:])
                self.note(data[0], {servo.number: int.from_bytes(data[1:], "little")})
            return b"".join(servo.status() for servo in addressed)
        raise ValueError(f"instruction {instruction} is not simulated")

    @staticmethod
    def read(servo, address, size):
        return servo.status(bytes(servo.memory[address : address + size]))

    @staticmethod
    def write(servo, address, data):
        servo.memory[address : address + len(data)] = data


def main(port, log, *options):
    with contextlib.suppress(
        OSError, AttributeError
    ):  # servos answer at once: LeRobot waits for 50 ms
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    master, slave = pty.openpty()
    tty.setraw(slave)  # kept open, so that the port survives the end of a command
    Path(port).unlink(missing_ok=True)
    Path(port).symlink_to(os.ttyname(slave))
    with Path(log).open("w") as lines:
        arm = Arm(lines, swings="--swings" in options)
        while True:
            ready, _, _ = select.select([master, sys.stdin], [], [])
            if sys.stdin in ready and not sys.stdin.buffer.read1(1):
                return
            if master in ready:
                os.write(master, arm.feed(os.read(master, 4096)))


if __name__ == "__main__":
    main(*sys.argv[1:])

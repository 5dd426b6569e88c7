#!/usr/bin/env python3
"""A model server: a transformer of the chosen size with random weights, in bfloat16.

It answers on a Unix socket, or on a TCP port of this machine: to "TOKENS SEED" it makes a prompt from SEED, continues it
by TOKENS tokens, and answers with a digest of these tokens and of the last logits, the same each time. It is ready, and
has made FILE, once it has answered itself.

    torch_server.py --socket S --ready-file FILE [--size 8GiB] [--device cuda] [--weights FILE]
    torch_server.py --socket S --ask SEED [--tokens N] [--wait SECONDS]
"""

import argparse
import hashlib
import os
import re
import socket
import sys
import time

VOCABULARY = 4096
PROMPT = 16
LENGTH = 128
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no size; 512MiB and 8GiB are")
    return int(match[1]) * UNITS[match[2]]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", help="path of the Unix socket")
    where.add_argument("--port", type=int, help="TCP port on 127.0.0.1")
    parser.add_argument("--ready-file", metavar="FILE")
    parser.add_argument("--size", type=size, default=size("1GiB"), help="of the weights (1GiB)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--weights", metavar="FILE", help="to load them from; where it is not there, to write them to")
    parser.add_argument("--ask", type=int, metavar="SEED", help="ask a server, and print its answer")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--wait", type=float, default=0, help="for the server, so many seconds")
    return parser.parse_args()


def connect(options):
    if options.socket is not None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(options.socket)
        return connection
    return socket.create_connection(("127.0.0.1", options.port))


def ask(options):
    end = time.monotonic() + options.wait
    while True:
        try:
            with connect(options) as connection, connection.makefile("rw", encoding="ascii") as stream:
                stream.write(f"{options.tokens} {options.ask}\n")
                stream.flush()
                answer = stream.readline()
            if answer.endswith("\n"):
                sys.stdout.write(answer)
                return 0 if not answer.startswith("error") else 1
            problem = "it closed the connection"
        except OSError as error:
            problem = str(error)
        if time.monotonic() > end:
            print(f"no answer: {problem}", file=sys.stderr)
            return 1
        time.sleep(0.005)


class Model:
    def __init__(self, bytes_wanted, device, weights_file):
        import torch  # not for whoever only asks

        from tiny_transformer import Transformer, initialise

        self.torch = torch
        self.device = device
        width = 256 if bytes_wanted < 256 << 20 else 2048 if bytes_wanted < 8 << 30 else 4096
        of_a_block = 12 * width * width * 2
        around = 2 * VOCABULARY * width * 2
        layers = max(1, round((bytes_wanted - around) / of_a_block))
        default = torch.get_default_dtype()
        # Made where and as they are to be: a copy in host memory would be part of every image.
        torch.set_default_dtype(torch.bfloat16)
        with torch.no_grad(), _on(torch, device):
            model = Transformer(layers, width, VOCABULARY, LENGTH)
        torch.set_default_dtype(default)
        self.model = model.to(device).eval()
        if weights_file and os.path.exists(weights_file):
            self.load(weights_file)
        else:
            initialise(self.model, 1)
            if weights_file:
                self.write(weights_file)
        self.weights = sum(p.numel() * p.element_size() for p in self.model.parameters())

    def load(self, path):
        """As model servers do: mapped, and copied tensor by tensor to where it belongs."""
        torch = self.torch
        count = sum(p.numel() for p in self.model.parameters())
        everything = torch.from_file(path, shared=False, size=count, dtype=torch.bfloat16)
        at = 0
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(everything[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()

    def write(self, path):
        with open(path + ".next", "wb") as file, self.torch.no_grad():
            for parameter in self.model.parameters():
                parameter.detach().cpu().contiguous().view(self.torch.int16).numpy().tofile(file)
        os.replace(path + ".next", path)

    def answer(self, count, seed):
        torch = self.torch
        prompt = [(seed * 7919 + i * 104729) % VOCABULARY for i in range(PROMPT)]
        tokens = torch.tensor([prompt], device=self.device)
        logits = None
        with torch.inference_mode():
            for _ in range(max(1, min(count, LENGTH - PROMPT))):
                logits = self.model(tokens)[:, -1]
                tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
        digest = hashlib.sha256(repr(tokens.tolist()).encode())
        digest.update(logits.contiguous().view(torch.int16).cpu().numpy().tobytes())
        return digest.hexdigest()


def _on(torch, device):
    """New tensors are made on `device`, where torch can do that (2.0 and newer)."""
    made = torch.device(device)
    return made if hasattr(made, "__enter__") else torch.no_grad()


def serve(options):
    model = Model(options.size, options.device, options.weights)
    model.answer(options.tokens, 0)
    if options.socket is not None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(options.socket)
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", options.port))
    listener.listen(64)
    if options.ready_file:
        with open(options.ready_file + ".next", "w", encoding="ascii") as file:
            file.write(f"{os.getpid()} {model.weights}\n")
        os.replace(options.ready_file + ".next", options.ready_file)
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw", encoding="ascii") as stream:
            try:
                count, seed = (int(word) for word in stream.readline().split())
                answer = model.answer(count, seed)
            except ValueError as error:
                answer = f"error: {error}"
            try:
                stream.write(answer + "\n")
                stream.flush()
            except OSError:
                pass  # whoever asked is gone


def main():
    options = parse()
    if options.ask is not None:
        return ask(options)
    serve(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One context decoded alone."""

from collections.abc import Collection, Iterator

from armillary.decode import Sampling, Token
from armillary.model import Network
from armillary.sequence import Context
from armillary.slots import Decoder


def decode(
    network: Network, context: Context, *, sampling: Sampling, eos: Collection[int] = ()
) -> Iterator[Token]:
    decoder = Decoder(network, eos=eos, slots=1, remembered=0)
    decoder.add(context, sampling)
    while decoder.busy:
        for _, token in decoder.step():
            assert isinstance(token, Token), token
            yield token

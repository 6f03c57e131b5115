"""Agents of Pydantic AI as parts of flows: what the model and the tools have answered is remembered."""

from faultline.integrations.agents.approvals import Approval as Approval
from faultline.integrations.agents.conductor import StepOptions as StepOptions
from faultline.integrations.pydantic_ai.agent import DurableAgent as DurableAgent
from faultline.integrations.pydantic_ai.durability import retries_of_models as retries_of_models

__all__ = ["Approval", "DurableAgent", "StepOptions", "retries_of_models"]
